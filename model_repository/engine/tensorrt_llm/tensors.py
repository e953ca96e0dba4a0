"""The border between numpy and torch: the only importer of torch in this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

type Floats = npt.NDArray[np.float32]


def to_tensor(array: npt.NDArray[Any], like: Any = None) -> Any:
    """Return a tensor with an array's values, on the device of another tensor or on the host.

    A copy from pinned memory only joins the stream. Any other copy would wait for the step before, for each request.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if like is None else tensor.pin_memory().to(like.device, non_blocking=True)


def to_array(tensor: Any) -> Floats:
    """Return a tensor's values as float32 on the host; waits for the device."""
    array: Floats = tensor.float().cpu().numpy()
    return array


def on_stream(stream_ptr: int | None) -> AbstractContextManager[Any]:
    """Use the CUDA stream at an address; None: the current stream."""
    if not stream_ptr:
        return contextlib.nullcontext()
    context: AbstractContextManager[Any] = torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr))
    return context


# Changes of logits in place. The vocabulary is their last dimension; earlier dimensions may be any.


def ban(logits: Any, is_banned: npt.NDArray[np.bool_]) -> None:
    """Make tokens impossible.

    Args:
        logits: [..., num_logits], at least vocab_size.
        is_banned: [vocab_size].
    """
    logits[..., : len(is_banned)].masked_fill_(to_tensor(is_banned, logits), -np.inf)


def ban_token(logits: Any, token_id: int) -> None:
    logits[..., token_id] = -np.inf


def ban_from(logits: Any, first: int) -> None:
    """Make all tokens from `first` on impossible."""
    logits[..., first:] = -np.inf


def ban_below(logits: Any, margin: float) -> None:
    """Make the tokens impossible whose logits are more than `margin` below the largest."""
    logits.masked_fill_(logits < logits.amax(-1, True) - margin, -np.inf)


def keep_only(logits: Any, token_id: int) -> None:
    """Make one token the only possible one."""
    logits.fill_(-np.inf)
    logits[..., token_id] = 0.0


def shift(logits: Any, token_ids: Sequence[int], amounts: Floats) -> None:
    """Add an amount to the logit of each token; no token may occur twice."""
    if token_ids:
        ids = to_tensor(np.array(token_ids, dtype=np.int64), logits)
        logits[..., ids] += to_tensor(amounts, logits).to(logits.dtype)


def divide(logits: Any, token_ids: npt.NDArray[np.int64], divisor: float) -> None:
    """Make tokens less likely by a factor: divide positive logits, multiply negative ones."""
    if len(token_ids):
        ids = to_tensor(token_ids, logits)
        values = logits[..., ids]
        logits[..., ids] = torch.where(values > 0, values / divisor, values * divisor)
