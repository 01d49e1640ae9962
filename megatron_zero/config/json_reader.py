"""JSON text -> nodes that know their line, and every fault in it at once.

Strict JSON plus three tolerated things: # and // comments, trailing commas, a UTF-8 BOM. A bare word, an empty value, a
duplicate key or a missing comma is a fault that reading goes on after; broken nesting ends it.
Knows JSON and template placeholders, no key of any configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .placeholders import explain_placeholder, find_placeholder

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r]+ | \#[^\n]* | //[^\n]*)
    | (?P<newline>\n)
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<open>"[^\n]*)
    | (?P<mark>[{}\[\],:])
    | (?P<word>(?:\$\{[^}\n]*\} | <[^<>\n]*> | (?!//)[^\s{}\[\],:"\#])+)
    """,
    re.VERBOSE,
)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_LITERALS = (("true", True), ("false", False), ("null", None))
_PYTHON_LITERALS = (("True", "true"), ("False", "false"), ("None", "null"))


@dataclass(frozen=True, slots=True)
class Fault:
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Node:
    """value: str, int, float, bool, None, Array, Object, or Unreadable when a fault already tells of it."""

    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands where a bare word, an empty value or a broken string was."""


@dataclass(frozen=True, slots=True)
class Array:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Member:
    key: str
    line: int
    node: Node


@dataclass(frozen=True, slots=True)
class Object:
    members: tuple[Member, ...]

    def plain(self, key: str) -> Any:
        """The value of a member, None when absent."""
        return next((member.node.value for member in self.members if member.key == key), None)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # "string", "open", "mark", "word" or "end"
    text: str
    line: int


class _Broken(Exception):
    """Nesting is lost; the fault is recorded."""


def read_json(text: str) -> tuple[Object, tuple[Fault, ...]]:
    """The top-level object and all faults in line order; an empty object when the text is none."""
    reader = _Reader(list(_tokens(text.removeprefix("\ufeff"))))
    try:
        root = reader.root()
    except _Broken:
        root = Object(())
    return root, tuple(sorted(reader.faults, key=lambda fault: fault.line))


def _tokens(text: str) -> Iterator[_Token]:
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:  # a lone "/" before another, or a control character: a word of its own
            yield _Token("word", text[position], line)
            position += 1
            continue
        kind = match.lastgroup or ""
        if kind == "newline":
            line += 1
        elif kind != "space":
            yield _Token(kind, match.group(), line)
        position = match.end()
    yield _Token("end", "the end of the file", line)


class _Reader:
    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.faults: list[Fault] = []

    def root(self) -> Object:
        if not self._at("{"):
            self._break("a JSON object in { } is expected")
        node = self._value("")
        if self._next.kind != "end":
            self._fault(self._next.line, f"{self._next.text} stands after the closing brace")
        assert isinstance(node.value, Object)
        return node.value

    def _value(self, where: str) -> Node:
        token = self._next
        if self._at("{"):
            return self._object(where)
        if self._at("["):
            return self._array(where)
        if token.kind == "string":
            return Node(self._string(self._take(), where), token.line)
        if token.kind == "word":
            return Node(self._words(where), token.line)
        if token.kind == "open":
            self._take()
            self._fault(token.line, f"{_at_key(where)}the text {token.text.strip()} is not closed on its line")
            return Node(Unreadable(), token.line)
        self._fault(token.line, f"{_at_key(where)}the value is empty; an unset shell variable leaves this behind")
        return Node(Unreadable(), token.line)

    def _object(self, where: str) -> Node:
        opening = self._take()
        members: list[Member] = []
        while not self._at("}"):
            if members:
                self._separator(opening, where)
                if self._at("}"):
                    break
            members.append(self._member(opening, where))
            self._check_duplicate(members, where)
        self._take()
        return Node(Object(tuple(members)), opening.line)

    def _member(self, opening: _Token, where: str) -> Member:
        token = self._next
        if token.kind == "end":
            self._break(f"the {{ of line {opening.line} is never closed")
        if token.kind not in ("string", "word"):
            self._break(f"a key in double quotes is expected, not {token.text}")
        self._take()
        key = token.text.strip("'")
        if token.kind == "string":
            key = self._string(token, where) or ""
        elif find_placeholder(key):
            self._fault(token.line, f"{_at_key(where)}the key is a {explain_placeholder(key)}")
        else:
            self._fault(token.line, f'{_at_key(where)}the key {token.text} needs double quotes: "{key}"')
        if not self._at(":"):
            self._break(f'a colon is missing after the key "{key}"')
        self._take()
        return Member(key, token.line, self._value(f"{where}.{key}" if where else key))

    def _array(self, where: str) -> Node:
        opening = self._take()
        items: list[Node] = []
        while not self._at("]"):
            if items:
                self._separator(opening, where)
                if self._at("]"):
                    break
            if self._next.kind == "end" or self._at("}") or self._at(":"):
                self._break(f"the [ of line {opening.line} is never closed")
            items.append(self._value(f"{where}[{len(items)}]"))
        self._take()
        return Node(Array(tuple(items)), opening.line)

    def _separator(self, opening: _Token, where: str) -> None:
        """Take the comma between two entries; a missing one is a fault, but reading goes on when a new entry begins."""
        token = self._next
        if self._at(","):
            self._take()
        elif token.kind == "string":
            self._fault(token.line, f"a comma is missing before {token.text}")
        elif token.kind == "end":
            self._break(f"the {opening.text} of line {opening.line} is never closed")
        else:
            self._break(
                f"{_at_key(where)}a comma or the end of the {opening.text} of line {opening.line} is expected,"
                f" not {token.text}"
            )

    def _check_duplicate(self, members: list[Member], where: str) -> None:
        new = members[-1]
        for old in members[:-1]:
            if old.key == new.key:
                self._fault(new.line, f'{_at_key(where)}the key "{new.key}" stands on lines {old.line} and {new.line}')
                return

    def _string(self, token: _Token, where: str) -> str | None:
        try:
            return str(json.loads(token.text))
        except json.JSONDecodeError as error:
            self._fault(token.line, f"{_at_key(where)}{token.text} is no JSON text: {error.msg}")
            return None

    def _words(self, where: str) -> Any:
        """The value of an unquoted word: number or literal, else a fault that says what it probably is."""
        first = self._take()
        text = first.text
        while self._next.kind == "word" and self._next.line == first.line:
            text += " " + self._take().text
        for name, value in _LITERALS:
            if text == name:
                return value
        if _NUMBER.fullmatch(text):
            return json.loads(text)
        self._fault(first.line, f"{_at_key(where)}{_explain_word(text)}")
        return Unreadable()

    @property
    def _next(self) -> _Token:
        return self.tokens[self.position]

    def _at(self, mark: str) -> bool:
        return self._next.kind == "mark" and self._next.text == mark

    def _take(self) -> _Token:
        token = self._next
        self.position += 1
        return token

    def _fault(self, line: int, text: str) -> None:
        self.faults.append(Fault(line, text))

    def _break(self, text: str) -> None:
        self._fault(self._next.line, text)
        raise _Broken


def _at_key(where: str) -> str:
    return f"{where}: " if where else ""


def _explain_word(word: str) -> str:
    for python, right in _PYTHON_LITERALS:
        if word == python:
            return f"{word} is Python's spelling: write {right}"
    found = find_placeholder(word)
    if found is not None:
        return explain_placeholder(found)
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", word):
        return explain_placeholder(word)
    return f'{word} is no JSON value: text needs double quotes, and a template word must be filled ("{word}"?)'
