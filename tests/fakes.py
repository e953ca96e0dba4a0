"""Fakes at our own seams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import msgspec
import msgspec.structs

from frontend.errors import AdapterNotFound, APIError, NotFound
from frontend.triton.client import TritonClient
from frontend.triton.generations import Generations
from frontend.triton.health_checks import CHECK_PROMPT
from frontend.triton.leases import ModelLeases
from frontend.triton.models import ModelSnapshot, ServedModel
from frontend.triton.repository import Repository
from model_repository.capabilities import Capability
from model_repository.contract.arbiter import (
    ArbiterAnswer,
    ArbiterRequest,
    GivenLease,
    HeldLease,
    LoadRefusal,
    ModelStatus,
    Wish,
)
from model_repository.contract.output import Chunk, EngineStats, FinishReason, GenerationChunk, Usage, VectorChunk
from model_repository.contract.request import GenerationRequest, Prompt, TokenizeAnswer
from model_repository.contract.tensors import ARBITER
from model_repository.model_parameters import PARAMETER, ModelParameters


def served_model(model_id: str = "org/demo", adapters: Sequence[str] = (), **parameters: Any) -> ServedModel:
    """Return a model of this id that can do everything; `parameters` are those of its ensemble."""
    fields: dict[str, Any] = {
        "context_window": 2048,
        "max_sequences": 64,
        "created": 1700000000,
        "artifact_dir": Path("unused"),
        "eos_token_ids": frozenset([0]),
        "runtime": "llama_cpp",
        "fingerprint": "fp_demo",
        "aliases": (),
        "capabilities": frozenset(Capability),
        "tool_call_format": "hermes",
        "reasoning_format": "",
        "template_fields": (),
        "defaults": {},
        "adapters": dict.fromkeys(adapters, ""),
    }
    described = ModelParameters(model_id=model_id, **fields | parameters)
    return ServedModel(ensemble=described.ensemble, parameters=described)


DEMO = served_model()

USAGE = Usage(num_input_tokens=7, num_output_tokens=5, num_cached_tokens=3)


def counted(text: str, num_input_tokens: int, num_output_tokens: int) -> GenerationChunk:
    """Return a piece of a completion that says how many tokens there are so far."""
    return GenerationChunk(
        text=text, usage=Usage(num_input_tokens=num_input_tokens, num_output_tokens=num_output_tokens)
    )


def chunks(*texts: str, finish_reason: FinishReason = FinishReason.STOP) -> list[GenerationChunk]:
    """Return a completion in these pieces; the last one is complete."""
    last = GenerationChunk(text=texts[-1], finish_reason=finish_reason, usage=USAGE)
    return [*(GenerationChunk(text=text) for text in texts[:-1]), last]


def stats(epoch: int, step_age_ms: float = 0.0) -> EngineStats:
    """Return the answer of an idle engine."""
    return EngineStats(
        epoch=epoch,
        num_active=0,
        num_waiting=0,
        num_kv_tokens_used=0,
        max_kv_tokens=1,
        num_steps=0,
        num_step_tokens=0,
        max_step_sequences=0,
        num_finished=0,
        num_cancelled=0,
        num_images=0,
        num_image_tokens=0,
        image_s=0.0,
        num_draft_tokens=0,
        num_accepted_tokens=0,
        num_streams=0,
        num_output_batches=0,
        num_output_items=0,
        last_cancel_to_free_ms=0.0,
        cancel_to_free_ms=0.0,
        step_age_ms=step_age_ms,
        adapters={},
        adapter_bytes=0,
        num_unloading=0,
        is_draining=False,
    )


type Script = Sequence[Chunk | Exception | asyncio.Event]


class Playing:
    """The chunks of a generation, as an Attempt gives them."""

    def __init__(self, triton: FakeTriton, request: GenerationRequest, on_end: Callable[[Usage | None], None]) -> None:
        self._triton, self._request, self._on_end = triton, request, on_end
        self._script: Iterator[Chunk | Exception | asyncio.Event] | None = None
        self.was_sent = False

    async def get(self) -> Chunk:
        """Return the next chunk."""
        if self._script is None:
            self._script, self.was_sent = iter(self._triton.begin(self._request, self._on_end)), True
        for item in self._script:
            match item:
                case GenerationChunk() | VectorChunk():
                    if item.finish_reason is not None:
                        self._on_end(item.usage)
                    return item
                case asyncio.Event():
                    self._triton.waited_for.add(item)
                    await item.wait()
                    if self._triton.ending is not None:
                        raise self._triton.ending
                case _:
                    raise item
        raise AssertionError("the script is over")

    def close(self) -> None:
        """Leave the chunks."""
        if self._script is not None:
            self._script = None
            self._triton.num_open -= 1
            if not self._triton.num_open:
                self._triton.closed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


class FakeTriton(TritonClient):
    """Plays a script for each generation: chunks are yielded, errors raised, events waited for.

    Args:
        script: played for every request, or a function that returns a request's; `requests` holds what was asked.
        models: what it serves.
    """

    def __init__(
        self, script: Script | Callable[[GenerationRequest], Script] = (), models: Sequence[ServedModel] = (DEMO,)
    ) -> None:
        # This object stands for all parts of a client.
        self.generations, self.repository = cast(Generations, self), cast(Repository, self)
        self.script = script
        self.arbiter: Callable[[ArbiterRequest], ArbiterAnswer] | None = None  # None: there is none
        self.arbiter_error: APIError | None = None
        ready: dict[str, ServedModel] = {}
        further = tuple(model for model in models if ready.setdefault(model.id, model) is not model)
        self.models = ModelSnapshot(ready=ready, further=further)
        self.requests: list[GenerationRequest] = []
        self.asked: list[str] = []  # the ensembles of the requests
        self.started = asyncio.Event()
        self.num_open = 0  # generations that were begun and not left
        self.closed = asyncio.Event()  # set when the last open generation was left, for whatever reason
        self.num_snapshots = 0
        self.epoch = 1
        self.step_age_ms = 0.0
        self.num_active: list[int] = []  # in the next answers of the engine, then 0
        self.adapters: dict[str, str] = {}  # name to source
        self.kept_marks = b""
        self.adapter_error: APIError | None = None
        self.stats_error: APIError | None = None
        self.snapshot_error: APIError | None = None
        self.unload_error: APIError | None = None
        self.load_error: APIError | None = None
        self.loading: set[str] = set()  # stages that another frontend has loaded now
        self.check_error: APIError | None = None
        self.is_ahead = False  # the engine has no work when the first chunk is read
        self.stage_errors: dict[str, APIError] = {}  # of what is asked of the tokenizer or the detokenizer itself
        self.busy: set[str] = set()  # stages that execute other requests
        self.num_looks = 0
        self.checked: list[tuple[int, GenerationRequest]] = []
        self.ending: APIError | None = None  # raised by what waits when `end_all` is called
        self.waited_for: set[asyncio.Event] = set()
        self.calls: list[str] = []  # unload, load, abort, with their subjects
        self.tokenized: list[tuple[Prompt, bool]] = []  # prompts, and whether special tokens were to be added
        self.detokenized: list[tuple[tuple[int, ...], bool]] = []  # token ids, and whether special ones are shown

    async def ask_arbiter(self, request: ArbiterRequest) -> ArbiterAnswer:
        """Have the arbiter answer."""
        if self.arbiter_error is not None:
            raise self.arbiter_error
        if self.arbiter is None:
            raise NotFound(f"{ARBITER} is not loaded")
        if request.client and request.serial > 1:
            await asyncio.sleep(_HELD_S)
        return self.arbiter(request)

    async def reload_arbiter(self) -> None:
        """Note it."""
        self.calls.append(f"reload {ARBITER}")

    def running(
        self, ensemble: str, request: GenerationRequest, on_end: Callable[[Usage | None], None] = lambda _: None
    ) -> Playing:
        """Play the script."""
        self.asked.append(ensemble)
        return Playing(self, request, on_end)

    def begin(self, request: GenerationRequest, on_end: Callable[[Usage | None], None]) -> Script:
        """Note a request, and return its script."""
        self.requests.append(request)
        self.started.set()
        self.num_open += 1
        last = self.script[-1] if self.is_ahead and isinstance(self.script, list | tuple) else None
        if isinstance(last, GenerationChunk | VectorChunk):
            on_end(last.usage)
        return self.script(request) if callable(self.script) else self.script

    def abort(self, stage: str, error: APIError, *, spared_epoch: int | None = None) -> int:
        """Note it."""
        self.calls.append(f"abort {stage}" + (f" but {spared_epoch}" if spared_epoch is not None else ""))
        return 1

    def end_all(self, error: APIError) -> int:
        """End the generations that wait for an event."""
        self.ending = error
        for event in self.waited_for:
            event.set()
        return self.num_open

    async def snapshot(self) -> ModelSnapshot:
        """Return `models`, without those that a played arbiter has not loaded."""
        self.num_snapshots += 1
        await asyncio.sleep(0)  # as any answer over a network, it lets others run first
        if self.snapshot_error is not None:
            raise self.snapshot_error
        return self.arbiter.loaded(self.models) if isinstance(self.arbiter, PlayedArbiter) else self.models

    async def check(self, ensemble: str, requests: Sequence[tuple[int, GenerationRequest]]) -> None:
        """Note them, or refuse them."""
        self.checked += requests
        if self.check_error is not None:
            raise self.check_error

    async def tokenize(
        self, ensemble: str, prompt: Prompt, *, add_special_tokens: bool, sender: str = "", has_strings: bool = False
    ) -> TokenizeAnswer:
        """Return the same two tokens for any prompt."""
        if prompt != CHECK_PROMPT:
            self.tokenized.append((prompt, add_special_tokens))
        if "tokenizer" in self.stage_errors:
            raise self.stage_errors["tokenizer"]
        return TokenizeAnswer((5, 6), ("Ġa", "b") if has_strings else ())

    async def detokenize(
        self, ensemble: str, token_ids: Sequence[int], *, has_special_tokens: bool, sender: str = ""
    ) -> str:
        """Return `<id>` for each token."""
        self.detokenized.append((tuple(token_ids), has_special_tokens))
        return "".join(f"<{token_id}>" for token_id in token_ids)

    async def check_detokenizer(self, ensemble: str) -> None:
        """Do nothing."""
        if "detokenizer" in self.stage_errors:
            raise self.stage_errors["detokenizer"]

    async def num_executions(self, stage: str) -> int:
        """Return a larger number each time, if it is in `busy`."""
        self.num_looks += 1
        return self.num_looks if stage in self.busy else 0

    async def engine_stats(self, ensemble: str, timeout_s: float) -> EngineStats:
        """Answer with `epoch`."""
        if self.stats_error is not None:
            raise self.stats_error
        num_active = self.num_active.pop(0) if self.num_active else 0
        return msgspec.structs.replace(
            stats(self.epoch, self.step_age_ms),
            num_active=num_active,
            adapters=dict(self.adapters),
            kept_marks=self.kept_marks,
        )

    async def is_loading(self, name: str) -> bool:
        """Whether it is in `loading`."""
        return name in self.loading

    async def unload(self, stage: str) -> None:
        """Note it."""
        self.calls.append(f"unload {stage}")
        if self.unload_error is not None:
            raise self.unload_error

    async def load(self, ensemble: str, stage: str) -> None:
        """Note it."""
        self.calls.append(f"load {stage}")
        if self.load_error is not None:
            raise self.load_error

    async def ensembles(self) -> set[str]:
        """Return the ensembles of `models`."""
        return {*self.models.by_ensemble}

    async def fail_running(self, ensemble: str) -> None:
        """Note it."""
        self.calls.append(f"fail {ensemble}")

    async def fail_streams(self, ensemble: str) -> None:
        """Note it."""
        self.calls.append(f"fail streams of {ensemble}")

    def end_silent(self, ensemble: str, max_silence_s: float, error: APIError) -> int:
        """Do nothing."""
        return 0

    async def load_adapter(self, ensemble: str, name: str, source: str) -> EngineStats:
        """Note it in `adapters`, or refuse it."""
        if self.adapter_error is not None:
            raise self.adapter_error
        self.adapters[name] = source
        return msgspec.structs.replace(stats(self.epoch), adapters=dict(self.adapters))

    async def unload_adapter(self, ensemble: str, name: str) -> EngineStats:
        """Take it from `adapters`."""
        if self.adapters.pop(name, None) is None:
            raise AdapterNotFound()
        return msgspec.structs.replace(stats(self.epoch), num_unloading=1)

    async def close(self) -> None:
        """Do nothing."""


_HELD_S = 0.02  # a client's question, so that the next one comes later


class PlayedArbiter:
    """Answers at once: all that it knows may be used, and an order takes effect with the next question.

    Args:
        catalog: models that wishes load, unless `is_holding`; the list of Triton has them while they are loaded.
        states: of the models, by id.
    """

    def __init__(self, *catalog: ServedModel, **states: str) -> None:
        self.states = {model_id.replace("_", "/"): state for model_id, state in states.items()}
        self.states = dict.fromkeys((model.id for model in catalog), "unloaded") | self.states
        self.catalog = {model.id: model for model in catalog}
        self.is_holding = False
        self.recalled: set[str] = set()
        self.wishes: Mapping[str, Wish] = {}  # of the last client
        self.held: Mapping[str, HeldLease] = {}  # by the last client
        self.wished: list[str] = []  # each wish when it was first seen
        self.refusals: dict[str, LoadRefusal] = {}  # of orders and wishes
        self.device_bytes: dict[str, int] = {}  # of each model
        self.cause = ""  # of each load's failure; empty: loads succeed
        self.orders: list[str] = []
        self._next: dict[str, str] = {}

    def __call__(self, request: ArbiterRequest) -> ArbiterAnswer:
        self.states |= self._next
        self._next = {}
        order = request.load or request.unload
        if order and order in self.states:
            self.orders.append(f"{'load' if request.load else 'unload'} {order}")
            self.states[order] = "loading" if request.load else "unloading"
            self._next[order] = ("failed" if self.cause else "loaded") if request.load else "unloaded"
        refused: Mapping[str, LoadRefusal] = {}
        if request.load:
            refused = self.refusals
        elif request.client:
            for model_id in self.recalled - request.leases.keys():
                self.recalled.remove(model_id)
                self.states[model_id] = "unloaded"
            self.wished += [model_id for model_id in request.wishes if model_id not in self.wishes]
            self.wishes, self.held = request.wishes, request.leases
            if not self.is_holding:
                refused = {model_id: each for model_id, each in self.refusals.items() if model_id in request.wishes}
                self.states |= dict.fromkeys(request.wishes.keys() - refused.keys(), "loaded")
        statuses = {
            model_id: ModelStatus(state, 1000, cause=self.cause, device_bytes=self.device_bytes)
            for model_id, state in self.states.items()
        }
        loaded = [model_id for model_id, state in self.states.items() if state == "loaded"]
        leases = {model_id: GivenLease(1, is_recalled=model_id in self.recalled) for model_id in loaded}
        models = {model_id: (msgspec.Raw(config_of(model)),) for model_id, model in self.catalog.items()}
        return ArbiterAnswer(leases, refused, statuses, models=models, catalog="1")

    def loaded(self, models: ModelSnapshot) -> ModelSnapshot:
        """Return the list of Triton, without the models of the catalog that are not loaded."""
        away = {model_id for model_id in self.catalog if self.states[model_id] != "loaded"}
        ready = {model.id: model for model in {**self.catalog, **models.ready}.values() if model.id not in away}
        return replace(models, ready=ready, further=tuple(each for each in models.further if each.id not in away))


def config_of(model: ServedModel) -> bytes:
    """Return the parameters of a model's config.pbtxt, as an arbiter has them."""
    return model.parameters.to_config()[PARAMETER].encode()


def leases_without_arbiter() -> ModelLeases:
    """Return the leases of a Triton without an arbiter: its models are used freely."""

    async def never(_: object = None) -> Any:
        raise NotImplementedError

    return ModelLeases(never, never, lambda model_id: True, never, lambda model_id: None, lambda holds: None)
