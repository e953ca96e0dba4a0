"""The memory that the models of a server may hold together."""

from __future__ import annotations

import argparse

from model_repository.quantities import SIZE_RULE, bytes_of
from model_repository.system.cores import memory_bytes

MODEL_SHARE = 0.9  # part of the machine's memory; the rest is for other processes


def model_memory_bytes(given: int | None = None) -> int:
    """Return the given memory, or else that of the machine or container less a reserve."""
    return int(MODEL_SHARE * memory_bytes()) if given is None else given


def add_model_memory(command: argparse.ArgumentParser, text: str) -> None:
    """Add the option --model-memory. Its help begins with `text`, which names the memory."""
    share = f"{MODEL_SHARE:.0%}%"  # argparse replaces %%
    help_text = f"{text}: {SIZE_RULE} (default: {share} of the machine's)"
    command.add_argument("--model-memory", type=_size, metavar="BYTES", help=help_text)


def _size(text: str) -> int:
    try:
        return bytes_of(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text}: {exc}") from exc
