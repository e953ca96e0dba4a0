"""Functions of Vulkan's driver that do something else, in the calls of llama.cpp alone."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POINTER = struct.Struct("@P")
# vulkan_core.h: VkResult
OUT_OF_DEVICE_MEMORY, DEVICE_LOST = -2, -4

# Of the functions below: they return a VkResult. No one has more parameters, and none of them is floating-point.
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 6)


@contextmanager
def replaced(name: str, make: Callable[[Callable[..., int]], Callable[..., int]]) -> Iterator[None]:
    """Replace a function until the end of the block.

    llama.cpp keeps the addresses of the driver's functions in a table in its memory.

    Args:
        make: returns the replacement of the function that it gets.
    """
    original = getattr(ctypes.CDLL("libvulkan.so.1"), name)
    address = ctypes.cast(original, ctypes.c_void_p).value or 0
    function = _FUNCTION(make(_FUNCTION(address)))
    places = list(_places(_POINTER.pack(address)))
    assert places, f"llama.cpp does not call {name}"
    _write(places, ctypes.cast(function, ctypes.c_void_p).value or 0)
    try:
        yield
    finally:
        _write(places, address)


def _write(places: list[int], address: int) -> None:
    for place in places:
        ctypes.memmove(place, _POINTER.pack(address), _POINTER.size)


def _places(pattern: bytes) -> Iterator[int]:
    """Yield the addresses in the variables of llama.cpp's library for Vulkan that hold these bytes."""
    end_of_library = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, mode, *_, name = (*line.split(), "")[:7] if len(line.split()) < 6 else line.split()
        begin, end = (int(part, 16) for part in addresses.split("-"))
        is_behind = begin == end_of_library and not name
        if "libggml-vulkan" in name or is_behind:  # variables without a value are behind the file's own
            end_of_library = end
            if mode.startswith("rw"):
                text = ctypes.string_at(begin, end - begin)
                yield from (begin + at for at in range(0, len(text), len(pattern)) if text.startswith(pattern, at))
