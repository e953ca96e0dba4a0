"""Orders to load and unload adapters, and their restoration in a new engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace

import pytest

from model_repository.engine.adapter_control import AdapterControl, restore_adapters
from model_repository.engine.inbox import SetAdapter
from model_repository.errors import EngineFailed, InvalidRequest, Unsupported
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
    order(*arguments, lambda: outcome.set_result(None), SimpleNamespace(fail=outcome.set_exception))
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


def test_a_new_engine_removes_the_copies_of_earlier_engines_of_its_host(folder: Path) -> None:
    root = root_of(folder)
    own = root.copy(replace(root.find("a", "a"), path=folder / "a")).path.parent
    host, kept = gethostname(), {f"{gethostname()}-1", "elsewhere-2"}  # process 1 runs
    for name in (f"{host}-{2**22 + 1}", *kept):  # the kernel's largest id of a process is 2**22
        own.with_name(name).mkdir()
    restore_adapters(FakeRuntime(), root)
    assert {path.name for path in own.parent.iterdir()} == kept


# --- the engine -------------------------------------------------------------------------------------------------------


def test_adapters_are_changed_between_two_steps_and_listed_in_the_stats() -> None:
    fake = Fake(b"hello")
    order = SetAdapter("polite", POLITE)
    fake.engine.post(order)
    assert (order.done.done(), fake.engine.stats().adapters, fake.runtime.num_wakes) == (False, {}, 1)
    fake.step()
    assert order.done.result(0) is None
    stats = fake.engine.stats()
    assert (stats.adapters, stats.adapter_bytes, fake.engine.adapters()) == (
        {"polite": "teams/polite"},
        7,
        {"polite": POLITE},
    )


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
