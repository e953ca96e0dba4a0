"""Orders to load and unload adapters, and their restoration in a new engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from model_repository.engine.adapter_control import AdapterControl, restore_adapters
from model_repository.engine.inbox import SetAdapter
from model_repository.errors import EngineFailed, InvalidRequest, Unsupported
from tests.another_machine import CONTAINER, needs_root
from tests.model_repository.engine.adapter_folders import root_of, write_folder
from tests.model_repository.engine.fake_engine import POLITE, Fake, FakeRuntime
from tests.waiting import DEADLINE_S


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        write_folder(tmp_path / name)
    return tmp_path


@pytest.fixture
def fake() -> Iterator[Fake]:
    fake = Fake()
    fake.engine.start()
    yield fake
    fake.engine.close()


@pytest.fixture
def control(fake: Fake, folder: Path) -> AdapterControl:
    return AdapterControl(fake.engine, root_of(folder))


def outcome_of(order: Callable[..., None], *arguments: str) -> BaseException | None:
    """Wait for the outcome of one order."""
    outcome: Future[None] = Future()
    order(*arguments, lambda: outcome.set_result(None), outcome.set_exception)
    return outcome.exception(DEADLINE_S)


def load(control: AdapterControl, name: str, source: str) -> BaseException | None:
    return outcome_of(control.load, name, source)


def unload(control: AdapterControl, name: str) -> BaseException | None:
    return outcome_of(control.unload, name)


def noted(folder: Path) -> dict[str, str]:
    return dict(root_of(folder).noted())


def test_an_adapter_that_cannot_be_noted_is_not_offered(control: AdapterControl, fake: Fake, folder: Path) -> None:
    (folder / ".loaded").write_text("a file")
    assert isinstance(load(control, "polite", "a"), EngineFailed)
    assert fake.engine.stats().adapters == {}


def test_there_is_a_bound(control: AdapterControl) -> None:
    assert [load(control, name, name) for name in ("a", "b")] == [None, None]
    error = load(control, "c", "c")
    assert isinstance(error, InvalidRequest)
    assert error.message() == (
        "[invalid_value] name: 'c': 2 adapters are loaded already, which is the most (--max-adapters): unload one"
    )
    assert unload(control, "a") is None
    assert load(control, "c", "c") is None


def test_without_a_root_every_order_is_refused_at_once(fake: Fake) -> None:
    control = AdapterControl(fake.engine, None)
    with pytest.raises(Unsupported, match="rendered without --adapter-root"):
        load(control, "x", "a")
    with pytest.raises(Unsupported, match="rendered without --adapter-root"):
        unload(control, "x")


def test_an_order_for_an_ended_engine_fails(fake: Fake, folder: Path) -> None:
    fake.engine.close()
    assert isinstance(load(AdapterControl(fake.engine, root_of(folder)), "polite", "a"), EngineFailed)
    assert noted(folder) == {}


def test_a_new_engine_loads_the_noted_adapters_except_broken_ones(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = root_of(folder)
    for name in ("a", "b"):
        root.note(name, root.find(name, name))
    (folder / "a" / "adapter.gguf").write_bytes(b"others")
    runtime = FakeRuntime()
    restore_adapters(runtime, root)
    assert {name: adapter.source for name, adapter in runtime.adapters.items()} == {"b": "b"}
    assert "the adapter a does not load again: 'a': its file 'adapter.gguf' differs from its digest" in caplog.text
    (folder / "b" / "adapter.json").write_text("[" * 100_000)  # an unexpected failure
    restore_adapters(runtime, root)
    assert "the adapter b does not load again" in caplog.text
    assert noted(folder) == {"a": "a", "b": "b"}


def test_an_adapter_that_breaks_the_runtime_is_not_noted(control: AdapterControl, fake: Fake, folder: Path) -> None:
    fake.runtime.breaking_adapter = "a"
    assert isinstance(load(control, "polite", "a"), EngineFailed)
    assert (noted(folder), fake.runtime.adapters) == ({}, {})


def test_a_noted_adapter_that_breaks_the_runtime_does_not_break_the_next_one(folder: Path) -> None:
    root = root_of(folder)
    for name in ("a", "b"):
        root.note(name, root.find(name, name))
    runtime = FakeRuntime()
    runtime.breaking_adapter = "a"
    with pytest.raises(EngineFailed):
        restore_adapters(runtime, root)
    assert noted(folder) == {"b": "b"}


# Restores the adapters of a model for a runtime that needs copies. Runs until its standard input ends.
_ENGINE = """
import os, sys
from pathlib import Path
from model_repository.engine.adapter_control import restore_adapters
from tests.model_repository.engine.adapter_folders import root_of
from tests.model_repository.engine.fake_engine import FakeRuntime
root = root_of(Path(sys.argv[1]), runtime="tensorrt_llm")
restore_adapters(FakeRuntime(), root)
print(os.getpid(), root.copy(root.find("x", "whole")).path.parent, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("machine", [(), pytest.param(CONTAINER, marks=needs_root())])
def test_copies_last_as_long_as_their_engine(folder: Path, machine: tuple[str, ...]) -> None:
    """Containers have equal host names and process ids: one removed or took the copies of another."""
    write_folder(folder / "whole", runtime="tensorrt_llm")

    @contextmanager
    def engine() -> Iterator[tuple[str, Path]]:
        command = [*machine, sys.executable, "-c", _ENGINE, str(folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            pid, copies = process.stdout.readline().split()
            yield pid, Path(copies)

    with engine() as (first_pid, first), engine() as (second_pid, second):
        assert (first_pid == second_pid) == bool(machine)
        assert first != second and first.is_dir() and second.is_dir()
    with engine() as (_, third):
        assert [path for path in third.parent.iterdir() if path.is_dir()] == [third]


# --- the engine -------------------------------------------------------------------------------------------------------


def test_adapters_are_changed_between_two_steps_and_listed_in_the_stats() -> None:
    fake = Fake(b"hello")
    order = SetAdapter("polite", POLITE)
    fake.engine.post(order)
    assert (order.done.done(), fake.engine.stats().adapters, fake.runtime.num_wakes) == (False, {}, 1)
    fake.step()
    assert order.done.result(0) is None
    stats = fake.engine.stats()
    assert (stats.adapters, stats.adapter_bytes) == ({"polite": "teams/polite"}, 7)


def test_an_adapter_that_does_not_load_leaves_requests_alone() -> None:
    fake = Fake(b"hello")
    responder = fake.submit()
    fake.runtime.adapter_error = InvalidRequest("bad", "source")
    order = SetAdapter("polite", POLITE)
    fake.engine.post(order)
    fake.step(6)
    assert order.done.exception(0) is fake.runtime.adapter_error
    assert responder.texts() == ["h", "e", "l", "l", "o", ""]


def test_an_adapter_that_the_runtime_refuses_is_not_noted(control: AdapterControl, fake: Fake, folder: Path) -> None:
    fake.runtime.adapter_error = InvalidRequest("bad", "source")
    assert load(control, "polite", "a") is fake.runtime.adapter_error
    assert noted(folder) == {}
