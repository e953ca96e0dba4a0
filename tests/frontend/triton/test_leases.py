"""The leases of a Triton's models: waits, wishes, recalls and refusals, step by step with a played arbiter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from frontend import errors
from frontend.errors import APIError, ModelNotReady
from frontend.triton import leases as module
from frontend.triton.leases import MAX_WAITING, Hold, ModelLeases, Waiter, error_of
from frontend.triton.models import ModelSnapshot
from model_repository.contract.arbiter import (
    ArbiterAnswer,
    ArbiterRequest,
    GivenLease,
    HeldLease,
    LoadRefusal,
    ModelStatus,
    Wish,
)
from tests.fakes import DEMO, config_of, served_model
from tests.frontend.triton.test_models import Clock

A, B = "org/demo", "org/other"
WAIT_S = 30.0


class Played:
    """The leases of a process, and an arbiter that answers when a test has it answer."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.asked: list[ArbiterRequest] = []
        self.left: list[str] = []  # models without a lease since
        self.given_up: list[Hold] = []  # for another Triton
        self.listed = {A, B}
        self.num_refreshes = self.num_mended = 0
        self.refresh: Callable[[], object] = lambda: None
        self.reply: asyncio.Future[ArbiterAnswer] | None = None
        self.leases = ModelLeases(
            self._ask,
            self._mend,
            lambda name: name in self.listed,
            self._refresh,
            self.left.append,
            self.given_up.extend,
            self.clock,
        )

    async def last(self) -> ArbiterRequest:
        """Return the latest question, once all that can run has run."""
        for _ in range(10):
            await asyncio.sleep(0)
        return self.asked[-1]

    async def answer(self, answer: ArbiterAnswer | APIError | Exception) -> ArbiterRequest:
        """Answer the latest question; return the next one."""
        await self.last()
        reply, self.reply = self.reply, None
        assert reply is not None
        if isinstance(answer, ArbiterAnswer):
            reply.set_result(answer)
        else:
            reply.set_exception(answer)
        return await self.last()

    async def give(self, *names: str, number: int = 1, recalled: str = "", **fields: Any) -> ArbiterRequest:
        """Answer with leases, one of them recalled; return the next question."""
        given = {name: GivenLease(number, is_recalled=name == recalled) for name in names}
        return await self.answer(ArbiterAnswer(given, **fields))

    async def waiting(self, *senders: str) -> tuple[list[Hold], list[asyncio.Task[None]]]:
        """Return the holds of requests for A that wait, and their tasks."""
        holds = [Hold.at(self.leases, Waiter(A, sender, WAIT_S)) for sender in senders]
        tasks = [asyncio.ensure_future(hold.ready()) for hold in holds]
        await self.last()
        return holds, tasks

    @property
    def num_used(self) -> int:
        """Requests that are counted as running or waiting."""
        return self.leases._num_used.total() + sum(map(len, self.leases._waiting.values()))

    async def _ask(self, request: ArbiterRequest) -> ArbiterAnswer:
        self.asked.append(request)
        self.reply = asyncio.get_running_loop().create_future()
        return await self.reply

    async def _mend(self) -> None:
        self.num_mended += 1

    async def _refresh(self) -> None:
        self.num_refreshes += 1
        self.refresh()


@pytest.fixture
async def played(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Played]:
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    monkeypatch.setattr(module, "_ABSENT_S", 0.0)
    played = Played()
    running = asyncio.create_task(played.leases.run())
    await played.last()
    yield played
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_requests_that_wait_share_a_wish_and_go_on_with_one_grant(played: Played) -> None:
    await played.give()
    holds, tasks = await played.waiting("a", "b", "c")
    assert (await played.last()).wishes.keys() == {A}
    assert not any(task.done() for task in tasks)
    question = await played.give(A, number=7)
    assert all(task.done() for task in tasks)
    assert (question.leases, question.wishes) == ({A: HeldLease(7, is_busy=True, num_begun=3)}, {})
    for hold in holds:
        hold.release()
    assert played.num_used == 0


async def test_the_wish_has_the_oldest_sender_that_still_waits_and_its_wait(played: Played) -> None:
    await played.give()
    [first], [waiting] = await played.waiting("old")
    played.clock.now += 4
    await played.waiting("young")
    played.clock.now += 2
    assert (await played.give()).wishes == {A: Wish("old", 6.0)}
    waiting.cancel()
    first.release()
    assert (await played.give()).wishes == {A: Wish("young", 2.0)}


async def test_the_last_request_that_leaves_withdraws_the_wish(played: Played) -> None:
    await played.give()
    holds, tasks = await played.waiting("a", "b")
    for hold, task in zip(holds, tasks, strict=True):
        assert (await played.last()).wishes
        task.cancel()
        hold.release()
    assert (await played.last()).wishes == {}
    assert played.num_used == 0


async def test_a_recalled_lease_is_given_back_after_its_last_request_and_new_ones_wait(played: Played) -> None:
    await played.give(A)
    running = Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S))
    assert running.is_ready
    assert (await played.give(A, recalled=A)).leases == {A: HeldLease(1, is_busy=True, num_begun=1)}
    _, [new] = await played.waiting("new")
    assert (await played.last()).wishes.keys() == {A}
    assert played.leases.is_held(A)
    running.release()
    question = await played.last()
    assert (dict(question.leases), [*question.wishes], played.left) == ({}, [A], [A])
    assert not new.done()
    await played.give(A, number=2)
    assert new.done() and not new.exception()


async def test_a_request_that_is_granted_and_then_cancelled_counts_no_more(played: Played) -> None:
    await played.give()
    [hold], [task] = await played.waiting("a")
    played.refresh = task.cancel  # between the grant and the use
    played.listed.clear()
    await played.give(A)
    hold.release()
    assert (task.cancelled(), played.num_used) == (True, 0)


async def test_a_hold_that_is_released_twice_counts_once(played: Played) -> None:
    await played.give(A)
    first, _ = (
        Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S)),
        Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S)),
    )
    first.release()
    first.release()
    assert (await played.give(A)).leases[A].is_busy


async def test_a_wait_has_its_bound(played: Played) -> None:
    await played.give()
    hold = Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S))
    played.clock.now += WAIT_S
    with pytest.raises(ModelNotReady, match="not loaded within 30 seconds") as caught:
        await hold.ready()
    hold.release()
    assert (caught.value.headers["Retry-After"], played.num_used) == ("1", 0)


async def test_only_so_many_requests_wait_for_a_model(played: Played) -> None:
    for _ in range(MAX_WAITING):
        Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S))
    with pytest.raises(errors.QueueFull):
        Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S))
    Hold.at(played.leases, Waiter(B, max_wait_s=WAIT_S))


async def test_a_refusal_reaches_all_that_wait(played: Played) -> None:
    await played.give()
    holds, tasks = await played.waiting("a", "b")
    question = await played.give(refusals={A: LoadRefusal("load_failed", cause="no file", retry_after_s=8)})
    for task in tasks:
        error = task.exception()
        assert isinstance(error, errors.LoadFailed) and error.headers["Retry-After"] == "8"
        assert error.message == f"model={A}: it does not load: no file"
    for hold in holds:
        hold.release()
    assert (question.wishes, played.num_used) == ({}, 0)


def test_pinned_models_are_named_to_keys_that_may_use_them_alone() -> None:
    refusal = LoadRefusal("model_too_large", 12, 10, (A, B))
    error = error_of("big", refusal, lambda name: name == A)
    assert isinstance(error, errors.ModelTooLarge) and error.headers == {"x-should-retry": "false"}
    text = "model=big: it needs 12 bytes of memory, and all models together have 10"
    assert error.message == f"{text} beside the models that stay loaded ({A})"
    assert error_of("big", refusal, lambda name: False).message == text
    on_device = LoadRefusal("model_too_large", 12, 10, device="CUDA0")
    text = "model=big: it needs 12 bytes of the memory of CUDA0, and all models together have 10"
    assert error_of("big", on_device, lambda name: True).message == text


async def test_an_answer_that_was_overtaken_is_not_read(played: Played) -> None:
    await played.give()
    overtaken, num_asked = played.reply, len(played.asked)
    Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S))
    await played.last()
    assert len(played.asked) == num_asked + 1 and overtaken is not None
    overtaken.set_result(ArbiterAnswer({A: GivenLease(1)}))
    await played.last()
    assert not played.leases.is_held(A)


async def test_requests_go_on_when_the_list_has_the_model(played: Played) -> None:
    played.listed.clear()
    await played.give()
    _, [waiting] = await played.waiting("a")
    played.refresh = lambda: played.listed.add(A)
    await played.give(A)
    late = Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S))
    assert (waiting.done(), late.is_ready, played.num_refreshes) == (True, True, 1)
    played.listed.clear()  # another list is older
    unlisted = Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S))
    assert not unlisted.is_ready
    await unlisted.ready()
    assert played.num_refreshes == 2


@pytest.mark.parametrize("error", [errors.TritonUnreachable(), RuntimeError("a fault of ours")])
async def test_requests_go_on_when_the_list_does_not_come(played: Played, error: Exception) -> None:
    """They find out by themselves."""

    def fail() -> None:
        raise error

    played.listed.clear()
    await played.give()
    played.refresh = fail
    _, [waiting] = await played.waiting("a")
    await played.give(A)
    assert waiting.done() and not waiting.exception()


@pytest.mark.parametrize("error", [errors.ModelNotFound("conch_models"), errors.TritonKeyRefused()])
async def test_without_an_arbiter_all_models_are_used_freely(played: Played, error: APIError) -> None:
    _, [early] = await played.waiting("early")
    await played.answer(error)
    assert early.done() and Hold.at(played.leases, Waiter(B, max_wait_s=WAIT_S)).is_ready
    assert not played.leases.can_load(A)
    with played.leases.repairing(A) as may_repair:
        assert may_repair


@pytest.mark.parametrize(
    ("error", "num_mended"),
    [(errors.BadAnswer(), 0), (ModelNotReady("no versions"), 1), (errors.StageUnhealthy("conch_models"), 1)],
)
async def test_an_arbiter_that_fails_is_not_missing_and_a_dead_one_is_loaded_again(
    played: Played, error: APIError, num_mended: int
) -> None:
    """Models were used without leases, and those that are not loaded were unknown."""
    await played.give(A, statuses={A: ModelStatus("loaded", 1)})
    question = await played.answer(error)
    assert ([*question.leases], played.leases.can_load(A), played.num_mended) == ([A], True, num_mended)
    assert not Hold.at(played.leases, Waiter(B, max_wait_s=WAIT_S)).is_ready


async def test_an_unexpected_exception_does_not_end_the_exchange(played: Played) -> None:
    """It ended the health monitor too."""
    await played.answer(RuntimeError("a fault of ours"))
    assert (await played.give(A)).leases.keys() == {A}


async def test_a_model_with_unreadable_parameters_does_not_hide_the_others(played: Played) -> None:
    models = {A: (msgspec.Raw(config_of(DEMO)),), B: (msgspec.Raw(b"{}"),)}
    question = await played.give(A, models=models, catalog="1")
    assert (question.catalog, [*question.leases]) == ("1", [A])


async def test_an_arbiter_that_comes_back_names_its_models_again(played: Played) -> None:
    """They stayed unknown: its list had not changed."""
    models = {A: (msgspec.Raw(config_of(DEMO)),)}
    assert (await played.give(models=models, catalog="1")).catalog == "1"
    assert (await played.answer(errors.ModelNotFound("conch_models"))).catalog == ""


async def test_a_request_that_has_not_begun_gives_a_recalled_lease_back_and_waits_again(played: Played) -> None:
    """A long line of a model kept its turn to the end."""
    await played.give(A)
    begun, queued = (Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S)) for _ in range(2))
    assert not queued.requeue()
    played.clock.now += 20
    await played.give(A, recalled=A)
    assert queued.requeue() and not queued.is_ready and queued.age_s == 0.0
    begun.release()
    question = await played.last()
    assert (question.leases, question.wishes) == ({}, {A: Wish("", 0.0)})
    await played.give(A, number=2)
    await queued.ready()
    queued.release()
    assert played.num_used == 0


async def test_a_new_lease_does_not_begin_with_the_keep_alive_of_an_old_one(played: Played) -> None:
    """A model that a key had unloaded was unloaded again at once, whoever loaded it."""
    await played.give(A)
    hold = Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S))
    hold.keep(0.0)
    hold.release()
    assert (await played.give(A)).leases == {A: HeldLease(1, num_begun=1, keep_alive_s=0.0)}
    await played.give()
    assert (await played.give(A, number=2)).leases == {A: HeldLease(2)}


async def test_an_arbiter_that_is_silent_is_loaded_again(played: Played) -> None:
    for _ in range(3):
        assert played.num_mended == 0
        await played.answer(errors.TritonTimeout())
    assert played.num_mended == 1
    await played.give(A)
    await played.answer(errors.TritonTimeout())
    assert played.num_mended == 1


async def test_an_ended_exchange_leaves_no_task_and_no_request_that_waits() -> None:
    played = Played()
    running = asyncio.create_task(played.leases.run())
    await played.give()
    [hold], [waiting] = await played.waiting("a")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not played.leases._tasks and asyncio.all_tasks() <= {asyncio.current_task(), waiting}
    assert played.given_up == [hold]
    hold.drop(ModelNotReady("no"))
    await asyncio.wait([waiting])
    hold.release()
    assert played.num_used == 0


async def test_only_a_holder_of_the_lease_repairs_and_the_model_stays_meanwhile(played: Played) -> None:
    await played.give(A)
    with played.leases.repairing(B) as may_repair:
        assert not may_repair
    with played.leases.repairing(A) as may_repair:
        repairing = HeldLease(1, is_busy=True, num_begun=1, is_repairing=True)
        assert may_repair and (await played.last()).leases == {A: repairing}
        assert (await played.give(A, recalled=A)).leases == {A: repairing}
        with played.leases.repairing(A) as may_begin:
            assert not may_begin
    assert (await played.last()).leases == {}


async def test_a_request_of_a_held_model_makes_no_future_and_no_task(played: Played) -> None:
    await played.give(A)
    before = asyncio.all_tasks()
    hold = Hold.at(played.leases, Waiter(A, max_wait_s=WAIT_S))
    ready = hold.ready()
    with pytest.raises(StopIteration):
        ready.send(None)
    assert hold._granted is None and asyncio.all_tasks() == before


async def test_unloaded_models_are_listed_if_they_are_offered(played: Played) -> None:
    other = served_model(B, aliases=("alias",), adapters=("formal",))
    models = {model.id: (msgspec.Raw(config_of(model)),) for model in (DEMO, other)}
    await played.give(models=models, catalog="1")
    snapshot = ModelSnapshot(unready={B: "unavailable", "org/else": "unavailable"})
    completed = played.leases.completed(snapshot, {B})
    assert ([*completed.asleep], dict(completed.unready)) == ([B], {"org/else": "unavailable"})
    names = completed.names()
    assert {name: (each.model_id, each.lora_name) for name, each in names.items()} == {
        "alias": (B, ""),
        "formal": (B, "formal"),
        B: (B, ""),
    }
