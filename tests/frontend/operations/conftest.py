"""The operations port over a fake Triton."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from frontend.caller import KeyRole
from frontend.operations.adapters import AdapterCommands
from frontend.operations.admin import ADAPTERS, CONTROL
from frontend.operations.models import EndpointsControl
from frontend.operations.supervisor import Supervisor
from frontend.server import app_runner, operations_runner
from frontend.settings import Settings
from tests.fakes import FakeTriton, PlayedArbiter, served_model
from tests.frontend.conftest import client_of
from tests.frontend.gateway.key_files import KeyFile

type Operate = Callable[..., Awaitable[aiohttp.ClientSession]]


class FakeSupervisor(Supervisor):
    """Notes the signals to the workers."""

    def __init__(self) -> None:
        super().__init__(pid=0)
        self.signals: list[str] = []

    def reload_keys(self) -> None:
        """Note the signal."""
        self.signals.append("reload")

    def begin_drain(self) -> None:
        """Note the signal."""
        self.signals.append("drain")


@pytest.fixture
def supervisor() -> FakeSupervisor:
    return FakeSupervisor()


@pytest.fixture
def triton() -> FakeTriton:
    triton = FakeTriton(models=[served_model(aliases=("gpt-4o",), adapters=("formal",))])
    triton.arbiter = PlayedArbiter(org_demo="loaded")
    return triton


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    file = KeyFile(tmp_path / "keys.json")
    file.add("user")
    file.add("admin", role=KeyRole.ADMIN)
    return file


@pytest.fixture
async def operate(triton: FakeTriton, supervisor: FakeSupervisor) -> AsyncIterator[Operate]:
    """Serve the operations port with the given settings, and return a client of it."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> aiohttp.ClientSession:
            public = app_runner(Settings(drain_timeout_s=0, **settings), {"fake:1": triton}, supervisor.begin_drain)
            await public.setup()
            stack.push_async_callback(public.cleanup)
            runner = operations_runner(public, supervisor)
            # There are no other workers to wait for.
            runner.app[CONTROL] = EndpointsControl(lambda: {"fake:1": triton})
            runner.app[ADAPTERS] = AdapterCommands(lambda: {"fake:1": triton})
            return await client_of(runner, stack)

        yield start
