"""Many clients with common and different prompts: each answer is the one alone, without a word of another client's."""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.integration.api import CHAT, WEATHER, Api
from tests.integration.operations import Server
from tests.integration.stack import CLIENTS
from tests.pictures import circle, message_with

NUM_REQUESTS = 8  # of each client
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


def draw(rng: random.Random, canary: str) -> dict[str, Any]:
    """Return the body of a greedy request; some repeat a word that only this client knows."""
    question = rng.choice((*QUESTIONS, f"Repeat after me:\n{canary}"))
    user, model = {"role": "user", "content": question}, rng.choice(("demo", "demo", "demo", "demo-formal"))
    if rng.random() < 0.1:
        user, model = message_with(rng.choice(PICTURES), question="What colour is it?"), "demo-pictures"
    system = rng.choice(SYSTEMS)
    messages = [{"role": "system", "content": system}, user] if system else [user]
    rare: list[dict[str, Any]] = [{}, {}, {"n": 3}, {"tools": [WEATHER]}, {"stop": [", 5", " of"]}]
    return {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0} | rng.choice(rare)


def ask(server: Server, client: str, body: dict[str, Any]) -> str:
    """Return the messages and finish reasons of all choices; the ids of tool calls are random."""
    answer = Api(server.stack.url).post(CHAT, body, server.key_file.headers(client))
    return re.sub('"id": "[^"]*"', "", json.dumps(answer.body["choices"], ensure_ascii=False))


def test_answers_beside_other_clients_are_those_alone(busy_server: Server) -> None:
    """Of clients with a common prompt, 48 of 118 got other answers, some of them other clients'."""
    server, rng = busy_server, random.Random(7)
    canaries = {client: "".join(rng.choices("bdfgklmnprstvz", k=12)) for client in CLIENTS}
    bodies = {client: [draw(rng, canary) for _ in range(NUM_REQUESTS)] for client, canary in canaries.items()}
    alone = {json.dumps(body): ask(server, CLIENTS[0], body) for body in itertools.chain(*bodies.values())}
    is_over = threading.Event()

    def load_and_unload() -> None:
        while not is_over.is_set():
            assert server.admin("POST", ROUTE, name="polite", source="formal")[0] == 200
            assert server.admin("DELETE", f"{ROUTE}/polite")[0] == 200

    with ThreadPoolExecutor(len(CLIENTS) + 1) as pool:
        loading = pool.submit(load_and_unload)
        try:
            answered = list(pool.map(lambda client: [ask(server, client, body) for body in bodies[client]], CLIENTS))
        finally:
            is_over.set()
        loading.result()
    num_equal = 0
    for client, texts in zip(CLIENTS, answered, strict=True):
        for body, text in zip(bodies[client], texts, strict=True):
            num_equal += text == alone[json.dumps(body)]
            assert not any(canary in text for other, canary in canaries.items() if other != client), text
    # Rounding may decide between two tokens that are equally likely; `tests.exactness` measures that.
    assert num_equal > 0.97 * len(CLIENTS) * NUM_REQUESTS
