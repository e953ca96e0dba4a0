"""Stored answers over the real Triton, while it, the place of the store, or a frontend is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.frontend.gateway.conftest import RedisServer
from tests.frontend.store.conftest import SERVERS, PostgresServer, running_server
from tests.integration.replicas import Frontend, frontend_of
from tests.integration.stack import PACED_MODEL, Stack
from tests.integration.test_background import missed, whole
from tests.waiting import DEADLINE_S, wait_until

type Server = PostgresServer | RedisServer

ASKED: dict[str, Any] = {"model": PACED_MODEL, "input": "Count.", "max_output_tokens": 800}  # eight seconds
SHORT = ASKED | {"max_output_tokens": 4}
SOON = ("frontend.handlers.answer_run:CHECK_S=0.2", "frontend.handlers.background:LEASE_S=2")


@contextmanager
def served(stack: Stack, folder: Path, *arguments: str, **options: Any) -> Iterator[tuple[Frontend, OpenAI]]:
    """Run a frontend, and yield it with a client of it."""
    with (
        frontend_of([stack], folder, *arguments, constants=SOON, **options) as frontend,
        OpenAI(base_url=f"{frontend.url}/v1", api_key="x", max_retries=0, timeout=DEADLINE_S) as client,
    ):
        yield frontend, client


@pytest.fixture(scope="module")
def expected(pair: list[Stack], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of the answer to which nothing happens."""
    pair[1].start_again_if_ended()
    with served(pair[1], tmp_path_factory.mktemp("expected")) as (_, client):
        return client.responses.create(**ASKED).output_text


@pytest.fixture
def victim(pair: list[Stack]) -> Iterator[Stack]:
    """A Triton that a test may kill."""
    pair[0].start_again_if_ended()
    yield pair[0]
    pair[0].start_again_if_ended()


@pytest.fixture(scope="module", params=[SERVERS[0], pytest.param(SERVERS[1], marks=pytest.mark.faults)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server of a store."""
    with running_server(request.param) as server:
        yield server


def ended(client: OpenAI, response_id: str) -> Any:
    """Return an answer at its end."""

    def is_over() -> Any:
        found = client.responses.retrieve(response_id)
        return None if found.status in ("queued", "in_progress") else found

    return wait_until(is_over, "it has ended")


def is_found(client: OpenAI, response_id: str) -> bool:
    with suppress(openai.InternalServerError):
        return bool(client.responses.retrieve(response_id))
    return False


def said_in(client: OpenAI, conversation: str) -> list[str]:
    """Return the ids of the answers in a conversation, which has whole turns."""
    items: list[Any] = list(client.conversations.items.list(conversation, order="asc"))
    assert [item.role for item in items] == ["user", "assistant"] * (len(items) // 2)
    return [item.id for item in items[1::2]]


def begun_in_both(client: OpenAI, stack: Stack, pool: ThreadPoolExecutor) -> tuple[str, str, Any]:
    """Begin an answer in the background and a turn of a conversation; return their ids, and the turn's future."""
    conversation = client.conversations.create().id
    begun = client.responses.create(**ASKED, background=True).id
    turn = pool.submit(lambda: client.responses.with_raw_response.create(**ASKED, conversation=conversation))
    wait_until(lambda: stack.stats(PACED_MODEL).num_active == 2, "both have begun")
    wait_until(lambda: client.responses.retrieve(begun).output_text, "it has a text")
    return begun, conversation, turn


def test_answers_go_on_after_a_kill_of_triton(victim: Stack, expected: str, tmp_path: Path) -> None:
    store = f"--store={tmp_path / 'store.db'}"
    with served(victim, tmp_path, store) as (_, client), ThreadPoolExecutor(1) as pool:
        before = client.responses.create(**SHORT)
        begun, conversation, turn = begun_in_both(client, victim, pool)
        victim.launcher.triton.kill()
        victim.launcher.start_again(victim.launcher.triton)
        raw = turn.result(DEADLINE_S)
        answer, found = raw.parse(), ended(client, begun)
        assert raw.headers["x-resumed"] == "1"
        assert [(each.status, each.output_text) for each in (answer, found)] == [("incomplete", expected)] * 2
        assert said_in(client, conversation) == [answer.output[0].id]
        for each in (before, answer):
            assert client.responses.retrieve(each.id).to_dict() == each.to_dict()


def test_a_turn_fails_by_name_and_an_answer_waits_while_triton_stays_away(
    victim: Stack, expected: str, tmp_path: Path
) -> None:
    arguments = f"--store={tmp_path / 'store.db'}", "--resume-within-s=1"
    with served(victim, tmp_path, *arguments) as (frontend, client), ThreadPoolExecutor(1) as pool:
        before = client.responses.create(**SHORT)
        begun, conversation, turn = begun_in_both(client, victim, pool)
        victim.launcher.triton.kill()
        with pytest.raises(openai.InternalServerError) as failed:
            turn.result(DEADLINE_S)
        assert failed.value.code == "triton_unreachable"
        assert said_in(client, conversation) == []
        wait_until(lambda: f"id={begun} " in frontend.log, "its first run has ended")
        victim.launcher.start_again(victim.launcher.triton)
        found = ended(client, begun)
        assert (found.status, found.output_text) == ("incomplete", expected)
        assert client.responses.retrieve(before.id).to_dict() == before.to_dict()
        answer = client.responses.create(**SHORT, conversation=conversation)
        assert said_in(client, conversation) == [answer.output[0].id]


@pytest.mark.faults
def test_an_answer_goes_on_after_a_kill_of_everything(victim: Stack, expected: str, tmp_path: Path) -> None:
    store = f"--store={tmp_path / 'store.db'}"
    with served(victim, tmp_path, store) as (frontend, client), ThreadPoolExecutor(1) as pool:
        begun, conversation, turn = begun_in_both(client, victim, pool)
        frontend.process.kill()
        victim.launcher.triton.kill()
        with pytest.raises(openai.APIConnectionError):
            turn.result(DEADLINE_S)
    with served(victim, tmp_path, store, is_up=lambda frontend: bool(frontend.url)) as (frontend, client):
        wait_until(lambda: f"{begun} goes on" in frontend.log, "the frontend knows of the answer")
        assert client.responses.retrieve(begun).status == "in_progress"
        victim.launcher.start_again(victim.launcher.triton)
        found = ended(client, begun)
        assert (found.status, found.output_text) == ("incomplete", expected)
        assert said_in(client, conversation) == []


@pytest.mark.faults
def test_answers_go_on_after_a_kill_of_the_store(victim: Stack, server: Server, expected: str, tmp_path: Path) -> None:
    with served(victim, tmp_path, f"--store={server.url}") as (_, client):
        conversation = client.conversations.create().id
        before = client.responses.create(**SHORT, conversation=conversation)
        stream: Any = client.responses.create(**ASKED, background=True, stream=True, conversation=conversation)
        seen = [next(stream) for _ in range(9)]
        server.stop()
        try:
            with suppress(openai.APIError):
                seen += stream
            answer = client.responses.create(**SHORT)
            assert (answer.output_text, answer.store) == (before.output_text, False)
        finally:
            server.start()
        wait_until(lambda: is_found(client, before.id), "the store is used again")
        seen += missed(client, seen)
        found = whole(client, seen)
        assert (found.status, found.output_text) == ("incomplete", expected)
        assert said_in(client, conversation) == [before.output[0].id, found.output[0].id]
        assert client.responses.retrieve(before.id).to_dict() == before.to_dict()


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.faults)])
def test_another_frontend_goes_on_with_an_answer(
    victim: Stack, server: Server, expected: str, number: signal.Signals, tmp_path: Path
) -> None:
    store = f"--store={server.url}"
    with (
        served(victim, tmp_path, store) as (first, client_of_first),
        served(victim, tmp_path, store) as (second, client),
    ):
        stream: Any = client_of_first.responses.create(**ASKED, background=True, stream=True)
        seen = [next(stream) for _ in range(9)]
        first.process.send_signal(number)
        seen += missed(client, seen)
        found = whole(client, seen)
        assert (found.status, found.output_text) == ("incomplete", expected)
        assert f"{found.id} goes on" in second.log
        first.process.send_signal(signal.SIGCONT)  # it must not go on
        victim.wait_until_idle(PACED_MODEL)
        assert whole(client, seen).to_dict() == found.to_dict()
