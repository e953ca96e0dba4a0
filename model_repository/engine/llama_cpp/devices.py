"""Lists the devices of the installed llama.cpp: `python -m model_repository.engine.llama_cpp.devices`, in JSON.

The binding does not tell their memory. The libraries that it loads do, by functions of ggml-backend.h.
"""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Iterator, Mapping

import msgspec

from model_repository.contract.output import DeviceState
from model_repository.engine.llama_cpp.library import llama, load_backends
from model_repository.engine.runtime import EngineConfig
from model_repository.errors import EngineFailed
from model_repository.system.devices import Device, DeviceUse

_READ_INTERVAL_S = 1.0
_KIND = "GPU"  # an integrated one (IGPU) shares the memory of the machine


def list_devices() -> list[Device]:
    """Return the devices in the order in which llama.cpp numbers them for a model."""
    load_backends()
    kinds = {each["name"]: each["type"] for each in llama.ggml_backend_dev_info()}
    return [device for device in _devices() if kinds[device.name] == _KIND] if _KIND in kinds.values() else []


def shares_of(config: EngineConfig) -> list[float]:
    """Return the share of each device, in llama.cpp's order, of the layers that devices compute; without any, empty.

    Raises:
        EngineFailed: a device of the plan is not there, or the plan has several, and there are others.
    """
    if not config.gpu_layers:
        return []
    planned, found = config.devices, [device.name for device in list_devices()]
    if missing := sorted(planned.keys() - set(found)):
        has = f"has {', '.join(found)}" if found else "has no device"
        remedy = "start the server again, so that the model is planned for this machine"
        raise EngineFailed(f"planned for {', '.join(missing)}, llama.cpp {has} here: {remedy}")
    if 1 < len(planned) < len(found):  # beside the others, a device without layers made wrong numbers
        remedy = "show llama.cpp no others (GGML_VK_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES)"
        raise EngineFailed(f"planned for {', '.join(planned)} of {', '.join(found)}: {remedy}")
    return [float(planned[name].total_bytes) if name in planned else 0.0 for name in found]


class DeviceStates:
    """The states of the devices of a model, read at most once in a second: each new request needs them."""

    def __init__(self, planned: Mapping[str, DeviceUse]) -> None:
        self._planned = planned
        self._read_s, self._states = -math.inf, dict[str, DeviceState]()

    def latest(self) -> dict[str, DeviceState]:
        """Return the states by name."""
        if self._planned and time.monotonic() - self._read_s >= _READ_INTERVAL_S:
            self._states = {
                device.name: DeviceState(used_bytes=self._planned[device.name].used_bytes, free_bytes=device.free_bytes)
                for device in _devices()
                if device.name in self._planned
            }
            self._read_s = time.monotonic()
        return self._states


def _devices() -> Iterator[Device]:
    library = ctypes.CDLL(llama.__file__)  # its functions, and those of the libraries below it
    for name, result in (("get", ctypes.c_void_p), ("name", ctypes.c_char_p), ("description", ctypes.c_char_p)):
        getattr(library, f"ggml_backend_dev_{name}").restype = result
    for number in range(library.ggml_backend_dev_count()):
        device = ctypes.c_void_p(library.ggml_backend_dev_get(number))
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        library.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        yield Device(
            name=library.ggml_backend_dev_name(device).decode(),
            description=library.ggml_backend_dev_description(device).decode(errors="replace"),
            free_bytes=free.value,
            total_bytes=total.value,
        )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(list_devices()))
