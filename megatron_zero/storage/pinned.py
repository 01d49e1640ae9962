"""PinnedPool: host buffers of exact size, page-locked where a GPU will copy to or from them.

torch's own pinned allocator rounds sizes up to powers of two; here ordinary memory of the exact size is registered
with the driver. torch does not track such memory: whoever copies to or from it owns the events that say when it may be
touched again.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PinnedPool:
    """pinned: register buffers with the CUDA driver; False gives ordinary memory (CPU runs, pin_memory: false).

    Every buffer lives until close(). A registration that the driver refuses (memlock limit) falls back to pageable
    memory and is counted in `refused_bytes`, which the caller reports.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._registered: list[Tensor] = []
        self.pinned_bytes = 0
        self.pageable_bytes = 0
        self.refused_bytes = 0

    def buffer(self, numel: int, dtype: torch.dtype) -> Tensor:
        """[numel] zeros on the host, page-locked if this pool pins."""
        tensor = torch.zeros(numel, dtype=dtype)
        nbytes = tensor.untyped_storage().nbytes()
        if self._pinned and nbytes > 0:
            if self._register(tensor, nbytes):
                self._registered.append(tensor)
                self.pinned_bytes += nbytes
                return tensor
            self.refused_bytes += nbytes
        self.pageable_bytes += nbytes
        return tensor

    def close(self) -> None:
        """Unregister every buffer. The caller has waited for all copies. Idempotent."""
        while self._registered:
            tensor = self._registered.pop()
            code = int(torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr()))
            if code != 0:
                raise OSError(f"cudaHostUnregister of {tensor.untyped_storage().nbytes()} bytes failed with code {code}")
        self.pinned_bytes = 0

    @staticmethod
    def _register(tensor: Tensor, nbytes: int) -> bool:
        return int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), nbytes, 0)) == 0
