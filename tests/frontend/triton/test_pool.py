"""Which replica a request goes to, and what becomes of it when that one fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from frontend.errors import (
    APIError,
    Draining,
    EngineFailed,
    InvalidRequest,
    ModelNotReady,
    NotTaken,
    QueueFull,
    RateLimited,
    ReaderTooSlow,
    StageUnhealthy,
    TritonTimeout,
    TritonUnreachable,
)
from frontend.settings import Settings
from frontend.triton.chunk_queue import Announced
from frontend.triton.endpoints import ANY_MODEL
from frontend.triton.generating import Generating
from frontend.triton.models import ModelDirectory, ModelSnapshot
from frontend.triton.pool import _LIST_TIMEOUT_S, ReplicaPool
from frontend.triton.replica import Replica
from frontend.triton.replica_state import MAX_FAILURES, TRIAL_PAUSE_S
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest, Params, TextPrompt
from tests.fakes import DEMO, FakeTriton, chunks, served_model
from tests.frontend.test_loop_time import stand_still
from tests.frontend.triton.generating import said
from tests.frontend.triton.test_health_monitor import settled
from tests.frontend.triton.test_models import Clock

REQUEST = GenerationRequest(prompt=TextPrompt("Hello"), params=Params(max_tokens=5, is_stream=True, cancel_key="first"))
ENSEMBLE = DEMO.ensemble
REPLICAS = [DEMO, served_model(replica=2)]


class Pool:
    """A pool of fakes, and what they are made of."""

    def __init__(self, tritons: Sequence[FakeTriton], resume_within_s: float = 0.0, **settings: float) -> None:
        self.clock = Clock()
        self.replicas = [
            Replica(f"fake:{index}", triton, Settings(**settings), self.clock)  # type: ignore[arg-type]
            for index, triton in enumerate(tritons, 1)
        ]
        self.pool = ReplicaPool(self.replicas, resume_within_s=resume_within_s, clock=self.clock)

    async def text(self, request: GenerationRequest = REQUEST) -> str:
        """Return a whole completion."""
        async with aclosing(Generating(self.pool, DEMO.id, request)) as stream:
            return "".join([said(chunk) async for _, chunk in stream])

    async def poll_all(self) -> None:
        """Poll each engine once."""
        for replica in self.replicas:
            await replica.monitor.poll(ENSEMBLE)

    async def run_trials(self) -> None:
        """Run the trials that are due to their ends."""
        for replica in self.replicas:
            await settled(replica.monitor)


async def pool_of(*tritons: FakeTriton, resume_within_s: float = 0.0) -> Pool:
    pool = Pool(tritons, resume_within_s)
    await pool.pool.snapshot()
    return pool


async def test_a_busy_frontend_takes_no_endpoint_for_absent() -> None:
    pool = await pool_of(FakeTriton())
    listing = asyncio.create_task(pool.pool.snapshot())
    await stand_still(_LIST_TIMEOUT_S)
    await listing
    assert pool.pool.state_of(DEMO.id) == "ready"


async def test_texts_that_take_too_long_to_tokenize_are_no_failures() -> None:
    triton = FakeTriton(chunks("x"))
    pool = await pool_of(triton)
    triton.stage_errors["tokenizer"] = TritonTimeout()
    for _ in range(9):
        with pytest.raises(TritonTimeout):
            await pool.pool.tokenize(DEMO.id, TextPrompt("a"), add_special_tokens=True, sender="a")
    assert await pool.text() == "x"


async def test_the_replica_with_the_fewest_requests_gets_the_next_one() -> None:
    gate = asyncio.Event()
    tritons = [FakeTriton([gate, *chunks("x")]) for _ in range(3)]
    pool = await pool_of(*tritons)
    tasks = [asyncio.create_task(pool.text()) for _ in range(9)]
    await asyncio.gather(*(triton.started.wait() for triton in tritons))
    await asyncio.wait(tasks, timeout=0)
    assert [triton.num_open for triton in tritons] == [3, 3, 3]
    gate.set()
    assert await asyncio.gather(*tasks) == ["x"] * 9
    assert [replica.num_in_flight.total() for replica in pool.replicas] == [0, 0, 0]


async def test_a_prompt_goes_where_its_beginning_is_kept_as_far_as_anybody_knows() -> None:
    tritons = [FakeTriton(chunks("x")) for _ in range(2)]
    pool = await pool_of(*tritons)
    request = replace(REQUEST, prompt=TextPrompt("a" * 9000))

    async def asked() -> FakeTriton:
        before = [len(triton.asked) for triton in tritons]
        assert await pool.text(request) == "x"
        [found] = [each for each, number in zip(tritons, before, strict=True) if len(each.asked) > number]
        return found

    first = await asked()
    [other] = [each for each in tritons if each is not first]
    assert {await asked() for _ in range(9)} == {first}
    first.kept_marks, other.kept_marks = b"x" * 8, first.requests[0].params.marks
    pool.clock.now += 5
    await pool.poll_all()
    assert {await asked() for _ in range(9)} == {other}
    other.stats_error = EngineFailed()
    await pool.poll_all()
    assert [ENSEMBLE in replica.kept for replica in pool.replicas] == [each is first for each in tritons]
    assert [replica.work_of(ENSEMBLE) for replica in pool.replicas] == [(0, 0, 0)] * 2


async def test_prompts_of_a_single_replica_or_of_a_model_that_embeds_have_no_marks() -> None:
    embedder = served_model(DEMO.id, pooling="mean")
    for tritons in ([FakeTriton(chunks("x"))], [FakeTriton(chunks("x"), models=[embedder]) for _ in range(2)]):
        pool = await pool_of(*tritons)
        assert await pool.text(replace(REQUEST, prompt=TextPrompt("a" * 9000))) == "x"
        assert [request.params.marks for triton in tritons for request in triton.requests] == [b""]


async def test_each_replica_gets_equally_many_requests_whatever_else_runs_in_its_triton() -> None:
    gate, other = asyncio.Event(), served_model("org/other")
    pair, single = (FakeTriton([gate, *chunks("x")], models=models) for models in ([*REPLICAS, other], [DEMO]))
    pool = await pool_of(pair, single)
    assert pool.pool.num_ready(DEMO.id) == 3
    with pool.replicas[0].serving(other.ensemble):
        tasks = [asyncio.create_task(pool.text()) for _ in range(6)]
        await asyncio.wait(tasks, timeout=0)
        assert (Counter(pair.asked), single.asked) == ({ENSEMBLE: 2, f"{ENSEMBLE}@2": 2}, [ENSEMBLE] * 2)
        gate.set()
        assert await asyncio.gather(*tasks) == ["x"] * 6


async def test_a_replica_that_is_down_gets_no_requests_while_the_others_of_its_triton_answer() -> None:
    triton = FakeTriton(chunks("x"), models=REPLICAS)
    pool = await pool_of(triton)
    pool.replicas[0].monitor.request_failed(f"{ENSEMBLE}@2", StageUnhealthy(f"{ENSEMBLE}@2__engine"), pool.clock.now)
    assert [await pool.text() for _ in range(5)] == ["x"] * 5
    assert set(triton.asked) == {ENSEMBLE}
    assert (pool.pool.state_of(DEMO.id), pool.pool.num_ready(DEMO.id)) == ("ready", 1)
    states = {"fake:1": {DEMO.id: "ready"}, "fake:1@2": {DEMO.id: "recovering"}}
    assert pool.pool.states_by_endpoint() == states
    triton.models = ModelSnapshot(ready={DEMO.id: DEMO})  # Triton reloads it
    await pool.pool.snapshot()
    assert pool.pool.states_by_endpoint() == states


async def test_the_clients_are_those_of_the_present_endpoints() -> None:
    pool = await pool_of(FakeTriton(), FakeTriton())
    pool.pool.remove("fake:1", [ANY_MODEL])
    assert pool.pool.tritons() == {"fake:2": pool.replicas[1].triton}


async def test_a_second_attempt_goes_to_another_triton_if_there_is_one() -> None:
    gone, busy = FakeTriton([NotTaken()], models=REPLICAS), FakeTriton(chunks("x"))
    pool = await pool_of(gone, busy)
    with pool.replicas[1].serving(ENSEMBLE):
        assert [await pool.text() for _ in range(2)] == ["x"] * 2
    assert sorted(gone.asked) == [ENSEMBLE, f"{ENSEMBLE}@2"]


async def test_a_request_that_fails_at_one_replica_is_sent_once_more_to_another_of_its_triton() -> None:
    triton = FakeTriton(lambda request: [EngineFailed()] if request.params.cancel_key == "first" else chunks("x"))
    triton.models = FakeTriton(models=REPLICAS).models
    pool = await pool_of(triton)
    assert await pool.text() == "x"
    assert sorted(triton.asked) == [ENSEMBLE, f"{ENSEMBLE}@2"]


@pytest.mark.parametrize("error", [TritonUnreachable(), NotTaken(), EngineFailed(), QueueFull("full"), TritonTimeout()])
async def test_what_fails_before_its_first_chunk_is_sent_once_more_elsewhere(error: APIError) -> None:
    bad, good = FakeTriton([error]), FakeTriton(chunks("a", "b"))
    pool = await pool_of(bad, good)
    num_requests = 0
    while not bad.requests:  # which one is first is drawn by lot
        assert await pool.text() == "ab"
        num_requests += 1
    assert len(good.requests) == num_requests


async def test_a_second_attempt_has_a_cancel_key_of_its_own() -> None:
    # The engine remembers for a while that the first attempt was cancelled.
    triton = FakeTriton(lambda request: [NotTaken()] if request.params.cancel_key == "first" else chunks("x"))
    pool = await pool_of(triton)
    assert await pool.text() == "x"
    assert [request.params.cancel_key == "first" for request in triton.requests] == [True, False]


async def test_what_fails_behind_its_announcement_is_sent_once_more_too() -> None:
    announced = Announced(text="", ignored_keywords=("schema.not",))
    triton = FakeTriton(
        lambda request: [announced, EngineFailed()] if request.params.cancel_key == "first" else chunks("x")
    )
    pool = await pool_of(triton, triton)
    assert await pool.text() == "x"
    assert len(triton.requests) == 2


async def test_after_the_first_chunk_nothing_is_sent_again() -> None:
    tritons = [FakeTriton([GenerationChunk(text="a"), EngineFailed()]) for _ in range(2)]
    pool = await pool_of(*tritons)
    with pytest.raises(EngineFailed):
        await pool.text()
    assert sum(len(triton.requests) for triton in tritons) == 1


async def test_a_second_failure_is_the_answer() -> None:
    tritons = [FakeTriton([EngineFailed()]) for _ in range(3)]
    pool = await pool_of(*tritons)
    with pytest.raises(EngineFailed):
        await pool.text()
    assert sum(len(triton.requests) for triton in tritons) == 2


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no"),
        RateLimited("no", code="too_many_waiting"),
        Draining(),
        ReaderTooSlow(),
    ],
)
async def test_an_error_that_is_not_the_replicas_fault_is_not_sent_again_and_no_failure(error: APIError) -> None:
    tritons = [FakeTriton([error]) for _ in range(2)]
    pool = await pool_of(*tritons)
    for _ in range(10):
        with pytest.raises(type(error)):
            await pool.text()
    assert sum(len(triton.requests) for triton in tritons) == 10
    assert pool.pool.state_of(DEMO.id) == "ready"


async def test_an_outage_does_not_double_the_load() -> None:
    triton = FakeTriton([NotTaken()])
    pool = Pool([triton])
    await pool.pool.snapshot()
    for _ in range(200):
        pool.replicas[0].monitor.states.clear()  # else no request would reach it
        with pytest.raises(NotTaken):
            await pool.text()
    assert len(triton.requests) in (229, 230)  # a tenth more, and the ten that were saved


@pytest.mark.parametrize(("error", "num_failures"), [(EngineFailed(), MAX_FAILURES), (TritonUnreachable(), 1)])
async def test_a_model_that_fails_gets_no_requests_until_it_has_made_a_token(
    error: APIError, num_failures: int
) -> None:
    triton = FakeTriton([error])
    pool = await pool_of(triton)
    for _ in range(num_failures):
        with pytest.raises(type(error)):
            await pool.text()
    with pytest.raises(ModelNotReady, match="failing"):
        await pool.text()
    assert len(triton.requests) == num_failures
    pool.clock.now += TRIAL_PAUSE_S
    await pool.run_trials()
    assert pool.pool.state_of(DEMO.id) == "failing"
    triton.script = chunks("x")
    pool.clock.now += TRIAL_PAUSE_S
    await pool.run_trials()
    assert triton.requests[-1].params.max_tokens == 1
    assert await pool.text() == "x"


async def test_a_full_queue_is_no_failure_of_the_model() -> None:
    pool = await pool_of(FakeTriton([QueueFull("full")]))
    for _ in range(MAX_FAILURES + 1):
        with pytest.raises(QueueFull):
            await pool.text()


async def test_a_stage_that_is_down_sends_requests_elsewhere_at_once() -> None:
    tritons = [FakeTriton(chunks("x")) for _ in range(2)]
    pool = await pool_of(*tritons)
    pool.replicas[0].monitor.request_failed(ENSEMBLE, StageUnhealthy(f"{ENSEMBLE}__engine"), pool.clock.now)
    assert [await pool.text() for _ in range(5)] == ["x"] * 5
    assert (len(tritons[0].requests), len(tritons[1].requests)) == (0, 5)
    assert pool.pool.states_by_endpoint() == {"fake:1": {DEMO.id: "recovering"}, "fake:2": {DEMO.id: "ready"}}


@pytest.mark.parametrize("is_generation", [True, False])
async def test_a_stage_that_a_request_finds_dead_is_reloaded(is_generation: bool) -> None:
    stage = f"{ENSEMBLE}__tokenizer"
    triton = FakeTriton([StageUnhealthy(stage)])
    triton.stage_errors["tokenizer"] = StageUnhealthy(stage)
    pool = await pool_of(triton)
    with pytest.raises(StageUnhealthy):
        if is_generation:
            await pool.text()
        else:
            await pool.pool.tokenize(DEMO.id, TextPrompt("a"), add_special_tokens=True, sender="a")
    assert (pool.pool.state_of(DEMO.id), triton.calls) == ("recovering", [f"abort {stage}"])


async def test_the_models_are_the_union_and_each_is_asked_where_it_is() -> None:
    other = served_model("org/other")
    tritons = [FakeTriton(chunks("a")), FakeTriton(chunks("b"), models=[other])]
    pool = await pool_of(*tritons)
    assert set((await pool.pool.snapshot()).ready) == {DEMO.id, "org/other"}
    assert [await pool.text() for _ in range(3)] == ["a"] * 3
    assert await pool.pool.detokenize(other.id, [1], has_special_tokens=True, sender="") == "<1>"
    assert tritons[1].detokenized == [((1,), True)]
    assert tritons[0].detokenized == []


async def test_an_adapter_is_asked_for_where_it_is_loaded() -> None:
    tritons = [FakeTriton(chunks("a")), FakeTriton(chunks("b"), models=[served_model(adapters=("formal",))])]
    pool = await pool_of(*tritons)
    assert (await pool.pool.snapshot()).names()["formal"].lora_name == "formal"
    request = GenerationRequest(prompt=TextPrompt("x"), params=Params(max_tokens=1, lora_name="formal", cancel_key="k"))
    assert [await pool.text(request) for _ in range(4)] == ["b"] * 4


async def test_an_adapter_is_asked_for_at_the_replica_that_has_it() -> None:
    triton = FakeTriton(chunks("a"), models=[DEMO, served_model(replica=2, adapters=("formal",))])
    pool = await pool_of(triton)
    assert (await pool.pool.snapshot()).names()["formal"].lora_name == "formal"
    request = GenerationRequest(prompt=TextPrompt("x"), params=Params(max_tokens=1, lora_name="formal", cancel_key="k"))
    assert [await pool.text(request) for _ in range(4)] == ["a"] * 4
    assert set(triton.asked) == {f"{ENSEMBLE}@2"}


async def test_a_contradiction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    pool = await pool_of(FakeTriton(), FakeTriton(models=[served_model(context_window=4096)]))
    for _ in range(2):
        assert (await pool.pool.snapshot()).ready[DEMO.id].parameters.context_window == 2048
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "org/demo at fake:2 differs from the other replicas: context_window"


async def test_why_an_endpoint_is_not_reached_is_logged_once_until_it_is_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A Triton that is not there yet when the frontend starts is no reason for a warning."""
    triton = FakeTriton()
    pool = await pool_of(triton)
    for reason in ("not there yet", "", "refused", "refused", "wrong certificate", "refused", "", "refused"):
        triton.snapshot_error = TritonUnreachable(reason=reason) if reason else None
        with contextlib.suppress(TritonUnreachable):
            await pool.replicas[0].models.refreshing()
        pool.replicas[0].monitor.log_connection()
    assert [record.getMessage() for record in caplog.records] == [
        "fake:1 is not reached without TLS: refused",
        "fake:1 is not reached without TLS: wrong certificate",
        "fake:1 is reached again",
        "fake:1 is not reached without TLS: refused",
    ]


async def test_the_models_of_an_endpoint_that_is_away_are_known_but_not_ready() -> None:
    other = served_model("org/other")
    tritons = [FakeTriton(), FakeTriton(models=[other])]
    pool = await pool_of(*tritons)
    tritons[1].snapshot_error = TritonUnreachable()
    snapshot = await pool.pool.snapshot()
    assert (set(snapshot.ready), snapshot.unready) == ({DEMO.id}, {"org/other": "unreachable"})
    assert pool.pool.endpoints() == {"fake:1": "ready", "fake:2": "triton_unreachable"}
    tritons[0].snapshot_error = TritonTimeout()
    with pytest.raises(TritonTimeout):
        await pool.pool.snapshot()


class Hanging(FakeTriton):
    """Says nothing."""

    async def snapshot(self) -> ModelSnapshot:
        await asyncio.Event().wait()
        raise AssertionError


async def test_an_endpoint_that_hangs_is_waited_for_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.triton.pool._LIST_TIMEOUT_S", 0.01)
    pool = Pool([FakeTriton(chunks("x")), Hanging()])
    assert set((await pool.pool.snapshot()).ready) == {DEMO.id}
    monkeypatch.setattr("frontend.triton.pool._LIST_TIMEOUT_S", 3600.0)  # if anybody were waited for
    assert set((await pool.pool.snapshot()).ready) == {DEMO.id}
    assert pool.pool.endpoints()["fake:2"] == "triton_timeout"


async def test_what_is_known_of_the_only_endpoint_is_served_while_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.triton.pool._LIST_TIMEOUT_S", 0.01)
    pool = await pool_of(FakeTriton(chunks("x")))
    await pool.pool.snapshot()
    monkeypatch.setattr(pool.replicas[0].triton, "snapshot", Hanging().snapshot)
    assert set((await pool.pool.snapshot()).ready) == {DEMO.id}
    assert pool.pool.state_of(DEMO.id) == "ready"


async def test_what_is_expected_is_away_only_once_every_endpoint_has_been_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("frontend.triton.pool._LIST_TIMEOUT_S", 0.01)
    monkeypatch.setattr("frontend.triton.pool._ABSENT_TIMEOUT_S", 0.01)
    silent = Replica("fake:1", Hanging(), Settings())
    pool = ReplicaPool([silent], expected=[DEMO.id], is_complete=True)
    with pytest.raises(TritonTimeout):
        await pool.snapshot()
    silent.models.has_tried = True
    assert (await pool.snapshot()).unready == {DEMO.id: "not loaded"}
    silent.models.has_tried = False  # as of one that came later
    assert (await pool.snapshot()).unready == {DEMO.id: "not loaded"}


async def test_a_closed_stream_no_longer_counts_and_is_no_failure_of_the_replica() -> None:
    triton = FakeTriton([GenerationChunk(text="a"), asyncio.Event()])
    pool = await pool_of(triton)
    for _ in range(10):
        stream = Generating(pool.pool, DEMO.id, REQUEST)
        assert said((await anext(stream))[1]) == "a"
        await stream.aclose()
    assert (triton.num_open, pool.replicas[0].num_in_flight.total()) == (0, 0)
    assert pool.pool.state_of(DEMO.id) == "ready"


async def test_what_waited_for_its_turn_until_everything_was_ended_is_ended_too() -> None:
    triton = FakeTriton(chunks("x"))
    pool = await pool_of(triton)
    assert pool.pool.end_all(Draining()) == 0
    with pytest.raises(Draining):
        await pool.text()
    assert triton.requests == []


class SlowTriton(FakeTriton):
    """Answers what it serves when it is told to: with what it served when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()

    async def snapshot(self) -> ModelSnapshot:
        """Return `models`, late."""
        models = await super().snapshot()
        self.is_asked.set()
        await self.answers.wait()
        return models


async def test_a_model_is_found_that_was_loaded_while_an_older_question_is_under_way() -> None:
    # Else whoever has a model loaded is told by another worker that it is not: its watch asked a moment before.
    triton = SlowTriton()
    served, triton.models = triton.models, ModelSnapshot(unready={DEMO.id: "unavailable"})
    pool = Pool([triton])
    models = ModelDirectory(pool.pool, pool.clock)
    with pytest.raises(ModelNotReady):
        await models.get(DEMO.id)
    triton.is_asked.clear()
    triton.answers.clear()
    older = pool.replicas[0].models.refreshing()
    await triton.is_asked.wait()
    triton.models = served
    asked = asyncio.create_task(models.get(DEMO.id))
    for _ in range(5):  # it asks the directory, the pool, and the replica
        await asyncio.sleep(0)
    triton.answers.set()
    assert (await asked).model == DEMO
    assert (await older).ready == {}
