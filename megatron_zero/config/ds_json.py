"""The DeepSpeed JSON -> values by field path, each with its line; every fault of the file in one list.

A key is a knob (a field names it), known and not built (refused_keys.py), or unknown, which is an error with the
nearest name at every level. "auto" and null mean not given. Keys that start with "_" or "comment" pass, with all they
hold.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from .fields import ConfigError, Knob
from .given import Given, Reading
from .json_reader import Array, Fault, Member, Node, Object, Unreadable, read_json
from .placeholders import explain_placeholder, find_placeholder
from .refused import REFUSED_VALUES
from .refused_keys import BLOCKS, KEYS, NO_EFFECT, RefusedBlock
from .tree import walk_knobs
from .values import check_choice, from_json, nearest, show


def json_knobs() -> dict[str, tuple[str, Knob]]:
    """JSON path -> (field path, Knob), aliases included."""
    return {
        name: (path, knob)
        for path, knob in walk_knobs()
        for name in (knob.json, *knob.json_aliases)
        if name is not None
    }


def load_ds_config(argument: str) -> Reading:
    """Read what --deepspeed_config names: a path, or (as launchers pass it) the base64 of the JSON itself.

    Raises ConfigError when there is no such file or it cannot be read as UTF-8 text.
    """
    text = _decoded(argument)
    if text is not None:
        return read_ds_config(text, name="--deepspeed_config (base64)")
    path = Path(argument)
    try:
        if path.is_file():
            return read_ds_config(path.read_text(encoding="utf-8"), name=path.name)
    except RecursionError as error:
        raise ConfigError(f"--deepspeed_config {argument}: objects and lists stand too deep in one another") from error
    except (OSError, ValueError) as error:  # not UTF-8; a number of thousands of digits
        raise ConfigError(f"--deepspeed_config {argument}: cannot be read: {error}") from error
    raise ConfigError(f"--deepspeed_config {argument}: no such file")


def read_ds_config(text: str, *, name: str) -> Reading:
    """Read JSON text; `name` is how sources and messages call it ("ds_config.json:12")."""
    root, faults = read_json(text)
    walk = _Walk(name, json_knobs())
    walk.faults.extend(faults)
    walk.object(root, "")
    ordered = sorted(walk.faults, key=lambda fault: fault.line)
    return Reading(walk.given, tuple(walk.notes), tuple(f"{name}:{fault.line}: {fault.text}" for fault in ordered))


def _decoded(argument: str) -> str | None:
    """The JSON text that the argument is the base64 of, or None; no sensible path decodes to an opening brace."""
    try:
        text = base64.urlsafe_b64decode(argument.encode()).decode()
    except (binascii.Error, ValueError):
        return None
    return text if text.lstrip().startswith("{") else None


class _Walk:
    """One pass over the tree of nodes; collects given values, notes and faults."""

    def __init__(self, name: str, knobs: dict[str, tuple[str, Knob]]) -> None:
        self.name = name
        self.knobs = knobs
        self.known = (*knobs, *KEYS, *BLOCKS, *NO_EFFECT)
        self.given: dict[str, Given] = {}
        self.notes: list[str] = []
        self.faults: list[Fault] = []

    def object(self, value: Object, prefix: str) -> None:
        for member in value.members:
            if member.key.startswith("_") or member.key.lower().startswith("comment"):
                continue
            if find_placeholder(member.key):
                self._fault(member.line, f"the key is a {explain_placeholder(member.key)}", prefix)
                self._placeholders(member.node, f"{prefix}{member.key}")
            elif not self._placeholders(member.node, f"{prefix}{member.key}"):
                self._member(member, prefix + member.key)

    def _placeholders(self, node: Node, where: str) -> bool:
        """Record every template word left inside strings at or below this node; whether this very value is one."""
        if isinstance(node.value, str):
            found = find_placeholder(node.value)
            if found is not None:
                self._fault(node.line, explain_placeholder(found), where)
            return found is not None
        if isinstance(node.value, Array):
            found_in_items = [self._placeholders(item, where) for item in node.value.items]  # no early end: report all
            return any(found_in_items)
        if isinstance(node.value, Object) and self._is_refused_block(where):
            for member in node.value.members:
                if find_placeholder(member.key):
                    self._fault(member.line, f"the key is a {explain_placeholder(member.key)}", where)
                self._placeholders(member.node, f"{where}.{member.key}")
        return isinstance(node.value, Unreadable)

    def _is_refused_block(self, path: str) -> bool:
        return any(path == block or path.startswith(block + ".") for block in BLOCKS)

    def _member(self, member: Member, path: str) -> None:
        node = member.node
        if path in self.knobs:
            self._scalar(path, node)
        elif path + "[0]" in self.knobs:
            self._list(path, node)
        elif path in NO_EFFECT:
            self.notes.append(f"{path} {_show(node.value)} ({self.name}:{node.line}): {NO_EFFECT[path]}")
        elif path in KEYS:
            self._refused_key(path, node)
        elif path in BLOCKS:
            self._refused_block(path, BLOCKS[path], node)
        elif any(name.startswith(path + ".") for name in self.known):
            self._block(path, node)
        else:
            self._unknown(member, path)

    def _scalar(self, path: str, node: Node) -> None:
        field, knob = self.knobs[path]
        value = node.value
        if value is None or (value == "auto" and knob.auto):
            return
        try:
            if value == "auto" and "auto" not in REFUSED_VALUES.get(field, {}):
                raise ValueError('"auto" is not allowed here: give a value or leave it out')
            if _text(value) in REFUSED_VALUES.get(field, {}):
                raise ValueError(REFUSED_VALUES[field][_text(value)])
            parsed = from_json(knob, value)
            check_choice(knob, parsed)
        except ValueError as error:
            self._fault(node.line, f"{_show(value)} {_colon(str(error))}", path)
            return
        self._give(field, parsed, node, path)

    def _give(self, field: str, value: Any, node: Node, path: str) -> None:
        before = self.given.get(field)
        if before is not None:
            self._fault(node.line, f"the same setting already stands at {before.source} under another name", path)
            return
        self.given[field] = Given(value, f"{self.name}:{node.line}")

    def _list(self, path: str, node: Node) -> None:
        if node.value in (None, "auto"):
            return
        wanted = sum(name.startswith(path + "[") for name in self.knobs)
        if not isinstance(node.value, Array) or len(node.value.items) != wanted:
            self._fault(node.line, f"{_show(node.value)} must be a list of {wanted} numbers", path)
            return
        for index, item in enumerate(node.value.items):
            self._scalar(f"{path}[{index}]", item)

    def _block(self, path: str, node: Node) -> None:
        if isinstance(node.value, Object):
            self.object(node.value, path + ".")
        elif path == "zero_optimization" and isinstance(node.value, bool):
            # The form of 2020: true is stage 1.
            self._give("zero.stage", int(node.value), node, path)
        elif node.value is not None:
            self._fault(node.line, f"{_show(node.value)} must be an object in {{ }}", path)

    def _refused_key(self, path: str, node: Node) -> None:
        if not KEYS[path].is_off(node.value):
            self._fault(node.line, f"{_show(node.value)}: {KEYS[path].says}", path)
        elif node.value not in (None, "auto"):
            self._off(path, node)

    def _refused_block(self, path: str, block: RefusedBlock, node: Node) -> None:
        if node.value is None or node.value is False:
            return
        switch = node.value.plain(block.switch) if isinstance(node.value, Object) else node.value
        if switch not in block.off:
            self._fault(node.line, block.says, path)
        else:
            self._off(path, node)

    def _off(self, path: str, node: Node) -> None:
        shown = "block" if isinstance(node.value, Object) else _show(node.value)
        self.notes.append(f"{path} {shown} ({self.name}:{node.line}): off or as it always is here, no effect")

    def _unknown(self, member: Member, path: str) -> None:
        parent = path[: -len(member.key)]
        siblings = {name[len(parent) :].split(".")[0].split("[")[0] for name in self.known if name.startswith(parent)}
        elsewhere = sorted(name for name in self.known if name.split(".")[-1] == member.key)
        near = nearest(member.key, sorted(siblings))
        hint = f'; nearest: "{near}"' if near else ""
        if elsewhere:
            hint = f"; it belongs to {elsewhere[0]}"
        self._fault(member.line, f'unknown key "{member.key}"{hint}', parent.rstrip("."))

    def _fault(self, line: int, text: str, path: str) -> None:
        self.faults.append(Fault(line, f"{path.rstrip('.')}: {text}" if path.rstrip(".") else text))


def _text(value: Any) -> str:
    return show(value) if isinstance(value, (bool, str)) else ""


def _show(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Object):
        return "{...}"
    if isinstance(value, Array):
        return "[" + ", ".join(_show(item.value) for item in value.items) + "]"
    return show(value)


def _colon(rule: str) -> str:
    """A rule that begins with a verb follows its value directly, any other sentence after a colon."""
    return rule if rule.startswith(("must", "does")) else f": {rule}".lstrip()
