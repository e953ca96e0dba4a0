"""A test double of the few parts of torch that the tensorrt_llm runtime uses: a tensor is a numpy array."""

from __future__ import annotations

from contextlib import nullcontext as inference_mode
from typing import Any, Self

import numpy as np

from torch import cuda as cuda

__all__ = ["Tensor", "cuda", "from_numpy", "inference_mode", "where"]


class Tensor(np.ndarray):
    """A tensor on the only device there is."""

    device = "double"
    is_pinned = False

    def pin_memory(self) -> Self:
        """Return a copy in memory that the device reads by itself."""
        pinned = self.copy()
        pinned.is_pinned = True
        return pinned

    def to(self, target: Any, *, non_blocking: bool = False) -> Self:
        """Move it to a device, or return it in another type."""
        assert not non_blocking or self.is_pinned, "a copy of other memory waits for the device"
        return self if target in (self.device, "cpu", "cuda") else self._as(target)

    def _as(self, kind: Any) -> Self:
        return self.astype(kind).view(type(self))

    def float(self) -> Self:
        """Return it in float32."""
        return self._as(np.float32)

    def cpu(self) -> Self:
        """Return it on the host."""
        return self

    def numpy(self) -> np.ndarray:
        """Return the array that shares its memory."""
        return self.view(np.ndarray)

    def amax(self, dim: int, keepdim: bool = False) -> Self:
        """Return the largest value along a dimension."""
        return self.max(axis=dim, keepdims=keepdim)

    def masked_fill_(self, mask: np.ndarray, value: Any) -> Self:
        """Set the values where a mask is true; the mask is broadcast."""
        self[np.broadcast_to(mask, self.shape)] = value
        return self

    def fill_(self, value: Any) -> Self:
        """Set every value."""
        self.fill(value)
        return self


def from_numpy(array: np.ndarray) -> Tensor:
    """Return a tensor that shares an array's memory."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    return array.view(Tensor)


def where(condition: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """Return one tensor's values where a condition holds, another's elsewhere."""
    return np.where(condition, chosen, other).view(Tensor)
