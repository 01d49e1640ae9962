"""A missing extension says how to build it."""

from __future__ import annotations

import pytest

from megatron_zero.ops.native import NativeExtensionError, load_extension


def test_missing_extension_raises_with_the_build_command() -> None:
    with pytest.raises(NativeExtensionError, match=r"megatron_zero\._C_absent .*pip install -e \."):
        load_extension("_C_absent")
