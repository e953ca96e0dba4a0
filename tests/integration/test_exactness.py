"""Many clients with common and different prompts: each answer is the one alone, without a word of another client's."""

from __future__ import annotations

import itertools
import json
import random
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.exactness.answers import Answer, Comparison, measure_rounding
from tests.integration.api import CHAT, WEATHER, Api
from tests.integration.operations import Server
from tests.integration.stack import CLIENTS
from tests.pictures import circle, message_with
from tests.waiting import DEADLINE_S

NUM_REQUESTS = 12  # of each client
ROUTE = "/admin/models/demo/adapters"
SYSTEMS = ("", *(f"You are Marvin, a helpful assistant. {'The sky is blue. ' * count}" for count in (2, 10, 90)))
QUESTIONS = (
    "What is the capital of Peru?",
    "How do you say cat in French?",
    "Count from 1 to 20.",
    "Count from 1 to 60.",
    "What is the capital of Japan? Answer in JSON.",
    "What is the weather in Paris?",
)
PICTURES = [circle(colour) for colour in ("red", "blue")]
DIGEST = range(40, 400)


def draw(rng: random.Random, canary: str) -> dict[str, Any]:
    """Return the body of a request; some repeat a word that only this client knows."""
    question = rng.choice((*QUESTIONS, f"Repeat after me:\n{canary}"))
    user, model = {"role": "user", "content": question}, rng.choice(("demo", "demo", "demo", "demo-formal"))
    if rng.random() < 0.1:
        user, model = message_with(rng.choice(PICTURES), question="What colour is it?"), "demo-pictures"
    system = rng.choice(SYSTEMS)
    fields: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "system", "content": system}, user] if system else [user],
        "max_tokens": rng.choice((4, 24, 60)),
        "logprobs": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    rare: list[dict[str, Any]] = [
        {"n": 3},
        {"stop": [", 5", " of"]},
        {"ignore_eos": True},
        {"tools": [WEATHER]},
        {"response_format": {"type": "regex", "regex": "[a-z ]{3,20}"}},
    ]
    fields |= rng.choice(rare) if rng.random() < 0.5 else {}
    # Rounding moves one border between two candidates; among more of them, `tests.exactness` finds it.
    return fields | rng.choice(({"temperature": 0}, {"temperature": 1, "top_k": 2, "seed": rng.randrange(5)}))


def ask(server: Server, client: str, body: dict[str, Any], max_events: int | None = None) -> tuple[list[Answer], str]:
    """Return the answers of all choices, and their text.

    Args:
        max_events: the client hangs up after this number of events; None: it does not stream.
    """
    headers = server.key_file.headers(client)
    if max_events is None:
        choices = Api(server.stack.url).post(CHAT, body, headers).body["choices"]
        pieces = [(choice, choice["message"]) for choice in choices]
    else:
        data = json.dumps(body | {"stream": True}).encode()
        headers |= {"Content-Type": "application/json"}
        request = urllib.request.Request(server.stack.url + CHAT, data, headers)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            lines = itertools.islice((line for line in response if line.startswith(b"data: {")), max_events)
            events = [json.loads(line.removeprefix(b"data: ")) for line in lines]
        pieces = [(choice, choice["delta"]) for event in events for choice in event["choices"]]
    answers = []
    for index in range(body.get("n", 1)):
        own = [choice for choice, _ in pieces if choice["index"] == index]
        tokens = [each for choice in own for each in (choice["logprobs"] or {"content": []})["content"]]
        tops = tuple(
            {int(each["token"].removeprefix("token_id:")): each["logprob"] for each in (token, *token["top_logprobs"])}
            for token in tokens
        )
        token_ids = tuple(token_id for choice in own for token_id in choice.get("token_ids") or ())
        end = own[-1]["finish_reason"] if own else None
        answers.append(Answer(token_ids, tops, end=end, is_whole=end is not None))
    return answers, json.dumps([message for _, message in pieces], ensure_ascii=False)


def test_answers_beside_other_clients_are_those_alone(
    busy_server: Server, demo_artifact: Path, record_property: Callable[[str, object], None]
) -> None:
    """Of clients with a common prompt, 48 of 118 got other answers, some of them other clients'."""
    server, rng = busy_server, random.Random(7)
    canaries = {client: "".join(rng.choices("bdfgklmnprstvz", k=12)) for client in CLIENTS}
    bodies = {client: [draw(rng, canary) for _ in range(NUM_REQUESTS)] for client, canary in canaries.items()}
    comparison = Comparison(measure_rounding(demo_artifact / "model.gguf", DIGEST), vocab_size=0)
    alone = {json.dumps(body): ask(server, CLIENTS[0], body)[0] for body in itertools.chain(*bodies.values())}

    def compare(client: str, body: dict[str, Any], answers: list[Answer]) -> None:
        for index, (expected, got) in enumerate(zip(alone[json.dumps(body)], answers, strict=True)):

            def moved(biases: Mapping[int, float], num_top: int, index: int = index) -> Answer:
                fields = {"logit_bias": {str(token_id): bias for token_id, bias in biases.items()}}
                return ask(server, client, body | fields | {"top_logprobs": num_top})[0][index]

            comparison.compare(f"{client}: {body}, choice {index}", moved, expected, got)

    def work(client: str) -> Iterator[tuple[dict[str, Any], list[Answer], str]]:
        luck = random.Random(client)
        for body in bodies[client]:
            yield body, *ask(server, client, body, luck.choice((None, 1000, luck.randint(1, 5))))

    is_over = threading.Event()

    def load_and_unload() -> None:
        while not is_over.is_set():
            assert server.admin("POST", ROUTE, name="polite", source="formal")[0] == 200
            assert server.admin("DELETE", f"{ROUTE}/polite")[0] == 200

    with ThreadPoolExecutor(len(CLIENTS) + 1) as pool:
        loading = pool.submit(load_and_unload)
        try:
            answered = dict(zip(CLIENTS, pool.map(lambda client: list(work(client)), CLIENTS), strict=True))
        finally:
            is_over.set()
        loading.result()
    for client, got in answered.items():
        others = [canary for other, canary in canaries.items() if other != client]
        for body, answers, text in got:
            compare(client, body, answers)
            assert not any(canary in text for canary in others), text
    for body in bodies[CLIENTS[0]]:  # kept prefixes
        compare(CLIENTS[0], body, ask(server, CLIENTS[0], body)[0])
    record_property("differ by rounding", comparison.exceptions)
    assert comparison.num_equal > 0.9 * len(CLIENTS) * NUM_REQUESTS
