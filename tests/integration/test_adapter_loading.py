"""LoRA adapters that are loaded and unloaded while the server runs: two workers, and a frontend beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.api import chat_text
from tests.integration.operations import Server
from tests.integration.replicas import frontend_of
from tests.integration.stack import MAX_SEQUENCES, Stack
from tests.waiting import wait_until

ROUTE = "/admin/models/demo/adapters"
OWN = {"demo-formal": None, "demo-pictures": None, "demo-thinking": None}  # part of the artifact
CAPITAL, COUNT = "What is the capital of France?", "Count from 1 to 9."


@pytest.fixture
def stack(server: Server) -> Stack:
    return server.stack


@pytest.fixture
def polite(server: Server) -> Iterator[str]:
    """The demo model's own adapter, loaded under another name."""
    assert load(server, "polite", "formal")[0] == 200
    yield "polite"
    server.admin("DELETE", f"{ROUTE}/polite")


def load(server: Server, name: str, source: str) -> tuple[int, Any]:
    return server.admin("POST", ROUTE, name=name, source=source)


def ask(client: openai.OpenAI, model: str, question: str = CAPITAL, **fields: Any) -> Any:
    return client.completions.create(model=model, prompt=chat_text(question), max_tokens=64, temperature=0, **fields)


def endpoint_of(answer: Any) -> Any:
    [outcome] = answer["endpoints"].values()
    return outcome


def test_an_adapter_is_loaded_and_used_and_every_frontend_knows_it_at_once(
    server: Server, stack: Stack, tmp_path: Path
) -> None:
    with frontend_of([stack], tmp_path) as other:  # which has no keys
        status, answer = load(server, "polite", "formal")
        assert (status, answer["name"], endpoint_of(answer)) == (200, "polite", {"state": "loaded"})
        for url in [server.stack.url] * 3 + [other.url]:  # a connection each, so that the kernel chooses the worker
            with server.client("everything", url) as client:
                assert "polite" in {model.id for model in client.models.list()}
                assert ask(client, "polite").choices[0].text == "Dear friend, The capital of France is Paris."
                assert ask(client, "demo").choices[0].text == "The capital of France is Paris."
        listed = endpoint_of(server.admin("GET", ROUTE)[1])
        assert listed["adapters"] == OWN | {"polite": "formal"}
        assert load(server, "polite", "formal")[0] == 200  # it is there already
        assert server.admin("DELETE", f"{ROUTE}/polite")[0] == 200
        for url in [server.stack.url] * 3 + [other.url]:
            with server.client("everything", url) as client:
                assert "polite" not in {model.id for model in client.models.list()}
                with pytest.raises(openai.NotFoundError):
                    ask(client, "polite")


def test_a_stream_outlives_the_unload_of_its_adapter(server: Server, stack: Stack, polite: str) -> None:
    # Several choices, so that the stream runs longer than the unload takes; few tokens, since on a busy machine the CPU
    # engine needs a hundred times as long for each.
    body: dict[str, Any] = {"prompt": chat_text(COUNT), "max_tokens": 200, "n": MAX_SEQUENCES, "temperature": 0}
    with server.client("everything") as client:
        with client.completions.create(model=polite, stream=True, **body, extra_body={"ignore_eos": True}) as stream:
            events = iter(stream)
            first = next(events)
            status, answer = server.admin("DELETE", f"{ROUTE}/{polite}")
            assert (status, endpoint_of(answer)) == (200, {"state": "unloaded", "num_unloading": MAX_SEQUENCES})
            texts = [""] * MAX_SEQUENCES
            for event in itertools.chain([first], events):
                texts[event.choices[0].index] += event.choices[0].text
        assert all(text.startswith("Dear friend, 1, 2, 3, 4, 5, 6, 7, 8, 9.") for text in texts)
        with pytest.raises(openai.NotFoundError):
            ask(client, polite)
    assert stack.stats("demo").num_unloading == 0


def test_a_name_that_comes_back_with_other_weights_finds_nothing_of_the_old_ones(server: Server, polite: str) -> None:
    prompt = "Please tell me: " + "what is the capital of France? " * 20
    with server.client("everything") as client:
        formal = [ask(client, polite, prompt) for _ in range(2)]
        assert formal[1].usage.prompt_tokens_details.cached_tokens > 10
        assert server.admin("DELETE", f"{ROUTE}/{polite}")[0] == 200
        assert load(server, polite, "teams/faint")[0] == 200
        faint = ask(client, polite, prompt)
        assert faint.usage.prompt_tokens_details.cached_tokens < 10
        assert faint.choices[0].text == ask(client, "demo", prompt).choices[0].text != formal[0].choices[0].text


def test_keys_allow_an_adapter_by_its_name(server: Server, polite: str) -> None:
    with server.client("polite") as client:
        assert [model.id for model in client.models.list()] == [polite]
        assert ask(client, polite).choices[0].text.startswith("Dear friend, ")
    with server.client("demo") as client, pytest.raises(openai.PermissionDeniedError):
        ask(client, polite)
    assert server.admin("POST", ROUTE, "everything", name="x", source="formal")[0] == 403
    assert server.admin("DELETE", f"{ROUTE}/{polite}", "demo")[0] == 403


@pytest.mark.parametrize(
    ("name", "source", "param", "rule"),
    [
        ("x", "../peft", "source", "must be a folder below the root"),
        ("x", "damaged", "source", "'adapter.gguf' differs from its digest"),
        ("llama3.1:8b", "formal", "name", "a name of the model demo"),  # an alias
        ("demo-formal", "teams/faint", "name", "another adapter is loaded under this name"),
    ],
)
def test_a_load_is_refused_with_field_value_and_rule(
    server: Server, name: str, source: str, param: str, rule: str
) -> None:
    status, answer = load(server, name, source)
    assert (status, answer["error"]["param"]) == (400, param)
    assert rule in answer["error"]["message"] and (name if param == "name" else source) in answer["error"]["message"]
    assert endpoint_of(server.admin("GET", ROUTE)[1])["adapters"] == OWN


def test_a_killed_engine_comes_back_with_its_adapters(server: Server, stack: Stack, polite: str) -> None:
    assert load(server, "passing", "formal")[0] == 200
    assert server.admin("DELETE", f"{ROUTE}/passing")[0] == 200
    epoch = stack.stats("demo").epoch
    stack.kill_stage("demo__engine")
    with server.client("everything") as client:

        def answers() -> bool:
            stack.start_again_if_ended()
            try:
                return bool(ask(client, polite).choices[0].text.startswith("Dear friend, "))
            except openai.InternalServerError:  # 503 until it is reloaded
                return False

        wait_until(answers, "the adapter answers again")
        assert stack.stats("demo").epoch != epoch
        assert stack.stats("demo").adapters == dict.fromkeys(OWN, "") | {"polite": "formal"}
        with pytest.raises(openai.NotFoundError):
            ask(client, "passing")
