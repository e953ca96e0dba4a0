"""Loads and unloads of stages on a fake of Triton's Python backend, and the doors of the arbiter and its loaders."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import model_repository
from model_repository.arbiter.catalog import Catalog, Entry
from model_repository.arbiter.driver import LoadError
from model_repository.contract.arbiter import ArbiterAnswer, ArbiterRequest
from model_repository.contract.cancel_channel import END_REQUESTS, LEAVE
from model_repository.contract.codec import message_tensor
from model_repository.contract.engine_file import LEFT, READY, is_stopped, stop_engine
from model_repository.contract.tensors import ARBITER_REQUEST
from model_repository.errors import EngineFailed
from tests.model_repository.arbiter.repository import parameters_of, write_model
from tests.model_repository.python_backend import BACKEND, Request, stage_door


class Refused(Exception):
    pass


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `stages`, with the calls that reach Triton in `calls`."""
    monkeypatch.chdir(tmp_path)
    calls: list[str] = []
    states = {"a@2": READY}
    fake = SimpleNamespace(
        **vars(BACKEND),
        TritonModelException=Refused,
        load_model=lambda model_name: calls.append(f"load {model_name}"),
        unload_model=lambda model_name: calls.append(f"unload {model_name}"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", fake)
        for name in ("model_repository.python_backend", "model_repository.arbiter.stages"):
            patch.delitem(sys.modules, name, raising=False)
        stages = importlib.import_module("model_repository.arbiter.stages")
        patch.setattr(stages, "state_of", states.get)
        yield SimpleNamespace(stages=stages, calls=calls, states=states, fake=fake, patch=patch)
        for name in ("model_repository.python_backend", "model_repository.arbiter.stages"):
            sys.modules.pop(name, None)  # it holds the fake
        vars(model_repository).pop("python_backend", None)
        vars(importlib.import_module("model_repository.arbiter")).pop("stages", None)


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    """A model with two replicas."""
    for replica in (1, 2):
        write_model(tmp_path / "models", parameters_of("a", replica=replica))
    return Catalog.read(tmp_path / "models").entries["a"]


NO_FILE = "llama.cpp does not load it: no such file"
FAILED = "version 1 is at UNAVAILABLE state: Internal: EngineFailed:"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "Failed to load model: Failed to process the request for model 'conch__arbiter_0', message: load failed "
            f"for model 'demo': {FAILED} /home/x y/artifacts/demo-1/model.gguf: {NO_FILE}\n\n"
            "At:\n  /work/x.py(28): __init__\n",
            f"model.gguf: {NO_FILE}",
        ),
        (
            "Invalid argument: ensemble 'demo' depends on 'demo__engine' which has no loaded version. Model "
            f"'demo__engine' loading failed with error: {FAILED} CONCH_KEY is not set; it is needed;",
            "CONCH_KEY is not set; it is needed",
        ),
        ("version 1 is at UNAVAILABLE state: Not found: unable to load shared library: /opt/x.so", None),
        ("Internal: ImportError: cannot import '/opt/y z/lib.so' or (/opt/a.so), 3/4 and / of it", None),
        ("no code at all: /srv/a/b", "no code at all: b"),
    ],
)
def test_the_cause_of_a_failed_load_is_the_last_one_without_folders(backend: Any, text: str, cause: str | None) -> None:
    found = backend.stages.cause_of(text)
    assert cause is None or found == cause
    assert not any(folder in found for folder in ("home", "work", "/opt/y", "y z", "srv"))


def loaded(backend: Any, *errors: str) -> Any:
    """Return stages whose loads end so."""
    stages, rest = backend.stages.Stages(Path("models")), list(errors)
    stages._loaders = SimpleNamespace(load=lambda names: backend.calls.append(names) or rest.pop(0))
    return stages


def test_a_model_is_loaded_by_all_ensembles_of_its_replicas(backend: Any, entry: Entry) -> None:
    loaded(backend, "", "").load(entry)
    assert backend.calls == [[f"{name}{end}" for end in ("", "__requests", "__outputs")] for name in ("a", "a@2")]


def test_a_model_with_one_replica_that_loads_is_loaded(backend: Any, entry: Entry) -> None:
    loaded(backend, "no", "").load(entry)
    assert backend.stages.Stages(Path()).is_loaded(entry)
    stop_engine("a@2")
    assert not backend.stages.Stages(Path()).is_loaded(entry)


@pytest.mark.parametrize(("state", "is_removed"), [(READY, True), (LEFT, True), ("0.500", True), (None, False)])
def test_what_another_arbiter_has_stopped_is_unloaded_before_a_load(
    backend: Any, entry: Entry, state: str | None, is_removed: bool
) -> None:
    """An engine that has left serves nothing, and Triton keeps the stage that it has."""
    stop_engine("a")
    backend.states["a"] = state
    loaded(backend, "", "").load(entry)
    assert ("unload a__engine" in backend.calls) is is_removed
    assert "unload a@2__engine" not in backend.calls


def test_a_model_without_a_replica_that_loads_has_the_cause_of_the_first(backend: Any, entry: Entry) -> None:
    with pytest.raises(LoadError, match=r"^one$"):
        loaded(backend, "Internal: one", "Internal: two").load(entry)


def test_a_loader_that_dies_fails_the_load_and_is_started_again(backend: Any, entry: Entry) -> None:
    def fail(_: object) -> str:
        raise EngineFailed("the process that loads models has ended")

    stages = backend.stages.Stages(Path("models"))
    stages._loaders.load = fail
    with pytest.raises(LoadError, match="has ended"):
        stages.load(entry)
    stages._loaders._start_again("conch__loader2")
    assert backend.calls == ["unload conch__loader2", "load conch__loader2"]


def test_an_engine_hears_to_leave_until_it_does_and_to_end_its_requests_in_time(backend: Any, entry: Entry) -> None:
    """The message was sent once: an engine with a full socket never left, and its model was unloading for ever."""
    sent: list[int] = []

    class Sender:
        def __init__(self, ensemble: str) -> None:
            self.ensemble = ensemble

        def cancel(self, number: int) -> None:
            sent.append(number)
            if sent.count(number) > 1 and END_REQUESTS in sent:
                backend.states[self.ensemble] = LEFT

        def close(self) -> None:
            pass

    clock = iter(range(1000))
    backend.patch.setattr(backend.stages, "CancelSender", Sender)
    backend.states["a"] = READY
    backend.patch.setattr(
        backend.stages, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    )
    backend.stages.Stages(Path())._end_requests("a", 5.0)
    assert (sent.count(LEAVE) > 1, END_REQUESTS in sent) == (True, True)


def test_a_model_leaves_by_its_ensembles_before_its_stages(backend: Any, entry: Entry) -> None:
    backend.states.clear()
    backend.stages.Stages(Path()).unload(entry, 0.0)
    stages = ("tokenizer", "engine", "detokenizer", "requests", "outputs")
    own = [f"unload {ensemble}__{stage}" for ensemble in ("a", "a@2") for stage in stages]
    assert backend.calls == ["unload a", "unload a@2", *own]
    assert is_stopped("a")
    assert is_stopped("a@2")


@pytest.mark.parametrize("call", ["load", "unload"])
def test_triton_says_why_it_refuses(backend: Any, call: str) -> None:
    def refuse(model_name: str) -> None:
        raise Refused("no")

    setattr(backend.fake, f"{call}_model", refuse)
    own = sys.modules["model_repository.python_backend"]
    with pytest.raises(own.TritonRefused, match=r"^no$"):
        getattr(own, call)("a")


# --- the doors ---


def test_the_arbiter_answers_only_holders_of_the_key_and_proper_messages() -> None:
    with stage_door("arbiter") as door:
        door.key = "k" * 32
        door.driver = SimpleNamespace(ask=lambda message, reply: reply(ArbiterAnswer(total_bytes=7)))
        requests = [
            Request(message_tensor(ARBITER_REQUEST, payload))
            for payload in (msgspec.json.encode(ArbiterRequest(key="k" * 32)), b'{"key": "other"}', b"[]")
        ]
        good, wrong_key, no_message = door.execute(requests)
        [(answer, _)] = requests[0].sent
    assert good is None
    assert msgspec.json.decode(answer.tensors[0].value.item(), type=ArbiterAnswer).total_bytes == 7
    assert "needs Triton's key" in wrong_key.error.message
    assert "not an ArbiterRequest" in no_message.error.message


def test_a_loader_serves_no_requests() -> None:
    with stage_door("loader") as door:
        [answer] = door.execute([Request({})])
    assert "serves no requests" in answer.error.message
