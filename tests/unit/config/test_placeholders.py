"""Template words that sed left behind."""

from __future__ import annotations

import pytest

from megatron_zero.config.placeholders import KNOWN_WORDS, explain_placeholder, find_placeholder


@pytest.mark.parametrize(
    "text", [*KNOWN_WORDS, "CL_1st_METRIC_NAME", "CL_2nd_ROOT", "$NAME", "${NAME}", "<path>", "CONFIG_NEW", "/a/${B}/c"]
)
def test_template_words_and_leftovers_are_found(text: str) -> None:
    assert find_placeholder(text) is not None


@pytest.mark.parametrize("text", ["cpu", "none", "/local_nvme", "AdamW", "WARN", "seqlen", "", "MY_LOG_INTERVAL_X"])
def test_ordinary_text_is_no_placeholder(text: str) -> None:
    assert find_placeholder(text) is None


def test_the_likely_shell_variable_is_named() -> None:
    assert "shell variable GLOBAL_BATCH_SIZE" in explain_placeholder("CONFIG_BATCH_SIZE")
    assert "shell variable NAME" in explain_placeholder("${NAME:-3}")
