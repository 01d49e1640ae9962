"""Import of the compiled extensions. A missing one raises with the command that builds it."""

from __future__ import annotations

import importlib
from types import ModuleType

BUILD_COMMAND = "pip install -e . (add --no-build-isolation --no-deps where there is no network)"


class NativeExtensionError(ImportError):
    """A compiled extension is missing or does not load."""


def load_extension(name: str) -> ModuleType:
    """The extension megatron_zero.<name>.

    Raises NativeExtensionError with the loader's own message and the build command.
    """
    qualified = f"megatron_zero.{name}"
    try:
        return importlib.import_module(qualified)
    except ImportError as error:
        raise NativeExtensionError(
            f"the compiled extension {qualified} cannot be imported ({error}); "
            f"build it from the project's root with: {BUILD_COMMAND}"
        ) from error
