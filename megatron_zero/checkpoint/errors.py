"""The error of a checkpoint that cannot be used as it lies on disk."""

from __future__ import annotations


class CheckpointError(OSError):
    """What is on disk is missing, incomplete or damaged: the message names the path, what was expected and what is.

    An OSError, so that raise_together keeps its kind on every rank. A checkpoint that is whole but of another model is
    the user's choice of settings, hence a ConfigError.
    """
