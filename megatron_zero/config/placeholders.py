"""Words that sed should have replaced in a ds_config template, and the shell variable each usually comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Template word -> shell variable in the scripts people copy; "" = the sed line holds a literal (true, false, 3).
KNOWN_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "CONFIG_BATCH_SIZE": "GLOBAL_BATCH_SIZE",
        "CONFIG_MBSIZE": "BATCH_SIZE",
        "GBSIZE": "GLOBAL_BATCH_SIZE",
        "MBSIZE": "BATCH_SIZE",
        "LOG_INTERVAL": "LOG_INTERVAL",
        "ZERO_STAGE": "ZERO_STAGE",
        "PRESCALE_GRAD": "PRESCALE_GRAD",
        "CONFIG_FP16_ENABLED": "",
        "CONFIG_BF16_ENABLED": "",
        "CONFIG_OFFLOAD_DEVICE": "OFFLOAD_DEVICE",
        "CONFIG_OFFLOAD_RATIO": "OFFLOAD_RATIO",
        "CONFIG_CL_ENABLED": "CL_ENABLED",
        "CONFIG_CL_MIN": "CL_START_SEQLEN",
        "CONFIG_CL_MAX": "SEQ_LEN",
        "CONFIG_CL_DURATION": "CL_STEP",
        "DATA_EFFICIENCY_SEED": "SEED",
        "LTD_ENABLED": "LTD_ENABLED",
        "LTD_MIN": "LTD_START",
        "LTD_MAX": "SEQ_LEN",
        "LTD_STEP": "LTD_STEP",
        "CL_ENABLED": "CL_ENABLED",
        "DATA_SAMPLING_NUM_WORKERS": "NUM_WORKERS",
        "CL_CLUSTER_PATH": "DATA_CLUSTER_PATH",
    }
)
_METRIC_FIELDS: Final = "METRIC_NAME|SAMPLE_PATH|METRIC_PATH|DIFF_TYPE|CLUSTER_TYPE|MIN|MAX|TOTAL_STEP|DIFF_STEP|ROOT"
_METRIC_WORD: Final = re.compile(rf"CL_(?:1st|2nd)_(?:{_METRIC_FIELDS})")
_LEFTOVER: Final = re.compile(r"\$\{\w+[^}]*\}|\$\w+|<[^<>]*>|CONFIG_[A-Z0-9_]+")


def find_placeholder(text: str) -> str | None:
    """The first placeholder in a string or bare word: a known template word alone, or a leftover anywhere in it."""
    if text in KNOWN_WORDS or _METRIC_WORD.fullmatch(text):
        return text
    match = _LEFTOVER.search(text)
    return match.group() if match else None


def explain_placeholder(word: str) -> str:
    """One clause: which word was not filled, and the likely shell variable."""
    variable = KNOWN_WORDS.get(word, word.strip("$<>{}").split(":")[0])
    origin = f"its value usually comes from the shell variable {variable}" if variable else "the script's sed fills it"
    return f"placeholder {word} was not filled ({origin})"
