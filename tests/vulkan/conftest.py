"""Settings of the tests on a device: Vulkan's software device of Mesa, twice, so that a model may have two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from model_repository.engine.llama_cpp import context
from model_repository.system.devices import DeviceUse, read_devices
from model_repository.system.llama_build import installed_build

BUILD = installed_build()
assert BUILD is not None and BUILD.devices == "Vulkan", "make vulkan has the environment of these tests"


@pytest.fixture(scope="session", autouse=True)
def _servers(servers: None) -> None:
    """All tests of this folder compute for seconds."""


@pytest.fixture(scope="session")
def uses() -> Mapping[str, DeviceUse]:
    """The devices, in a plan that gives each model all of their memory."""
    return {
        device.name: DeviceUse(
            description=device.description, used_bytes=device.total_bytes, total_bytes=device.total_bytes
        )
        for device in read_devices()
    }


@pytest.fixture(scope="session")
def placement(uses: Mapping[str, DeviceUse]) -> Mapping[str, Any]:
    """Fields of a configuration: all layers are on the first device, and the second one computes nothing."""
    return {"gpu_layers": 99, "devices": {"Vulkan0": uses["Vulkan0"]}}


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that computes on the cores takes a minute for a whole step."""
    monkeypatch.setattr(context, "_TILED_PROMPTS", (9,))
