"""No callback of the event loop does work without a bound, whatever a request says: see `tests/loop_guard.py`."""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.frontend.guarded import GuardedServer, guarded_server
from tests.hostile import bodies, framing, images, large, names, wide
from tests.hostile.requests import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Corpus, post
from tests.hostile.wide import BODIES, FIELDS, SCHEMAS, Fill
from tests.loop_guard import NUM_TRIES, unit_s
from tests.waiting import DEADLINE_S

INPUT_TOKENS, COUNT_TOKENS = f"{RESPONSES}/input_tokens", f"{MESSAGES}/count_tokens"
NUM_BODIES = 25  # of each endpoint
NUM_MANY_BODIES = 400
USER = {"role": "user", "content": "hi"}
USUAL = 60_000  # bytes that are not yet a large body


def warm_up(server: GuardedServer) -> None:
    """Send each kind of a request, so that a later one imports nothing and builds no decoder."""
    for path, body in BODIES.items():
        for fields in (
            {},
            {"stream": True},
            {"nobody": 1},
            {"model": ""},
            {"metadata": {f"a{i}": "a" for i in range(6000)}},
        ):
            server.send(post({**body, **fields}, path))


@pytest.fixture(scope="module")
def server() -> Iterator[GuardedServer]:
    with pytest.MonkeyPatch.context() as patch, guarded_server() as server:
        patch.setattr("frontend.triton.generations.CLOSE_TIMEOUT_S", 0.1)  # the fake Triton ends no unused stream
        warm_up(server)
        yield server


def check(server: GuardedServer, requests: Iterable[tuple[str, bytes]], patience_s: float = DEADLINE_S) -> None:
    found = (server.complaint(name, raw, patience_s) for name, raw in requests)
    complaints = list(itertools.islice(filter(None, found), 3))
    assert not complaints, "\n".join(complaints)


# Of the long families each fifth request; `make faults` sends all of them.
LONG = (bodies.bombs, bodies.injections, images.images, names.paths)
FAMILIES: tuple[Callable[[], Corpus], ...] = (
    *LONG,
    bodies.explosions,
    bodies.floods,
    framing.chunking,
    framing.lines,
    framing.methods,
    framing.smuggling,
    names.encodings,
    names.headers,
    names.not_utf8,
)


@pytest.mark.parametrize(
    ("family", "step"),
    [
        *((family, 5 if family in LONG else 1) for family in FAMILIES),
        *(pytest.param(family, 1, marks=pytest.mark.faults) for family in LONG),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_no_hostile_request_holds_the_loop(server: GuardedServer, family: Callable[[], Corpus], step: int) -> None:
    is_endless = family.__module__ == framing.__name__ or family is names.encodings  # the end of some never comes
    requests = itertools.islice(family(), None, None, step)
    check(server, ((each.name, each.raw) for each in requests), 0.1 if is_endless else DEADLINE_S)


def schema_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def custom_tools(*definitions: str) -> dict[str, Any]:
    """Return custom tools with these regular expressions as their formats."""
    grammars = ({"type": "grammar", "grammar": {"syntax": "regex", "definition": each}} for each in definitions)
    tools = [{"type": "custom", "custom": {"name": f"f{i}", "format": each}} for i, each in enumerate(grammars)]
    return {"tools": tools}


def case(name: str, path: str, body: Mapping[str, Any]) -> Any:
    """Return a request with a name."""
    return pytest.param(name, path, body, id=name)


_CHAT = {"model": "chat", "messages": [USER]}
_COMPLETION = BODIES[COMPLETIONS]
_REWRITTEN = wide.rewritten(60, 3000, 50)
_TEXT_FORM = {"format": {"type": "json_schema", "name": "a", "schema": _REWRITTEN}}
_ONE_OF = {"oneOf": [{"type": "object", "properties": {"a": {"const": number}}} for number in range(100)]}
_FUNCTION = {"type": "function", "function": {"name": "f", "parameters": _ONE_OF}}
_TOOLS = [{"type": "function", "function": {"name": f"f{number}", "parameters": {}}} for number in range(128)]
_TALK = {"ignore_eos": True, "max_tokens": 200}
_LIKELY = {"logprobs": True, "top_logprobs": 20}
_SHORT = {"truncation": "auto", "max_output_tokens": 60_000}
ATTACKS = (
    case("N1 by chat", CHAT, _CHAT | schema_format(_REWRITTEN)),
    case("N1 by Messages", MESSAGES, {**BODIES[MESSAGES], "tools": [{"name": "f", "input_schema": _REWRITTEN}]}),
    case("N1 by Responses", RESPONSES, {**BODIES[RESPONSES], "text": _TEXT_FORM}),
    case("N1 as a text", COMPLETIONS, {**_COMPLETION, "structured_outputs": {"json": json.dumps(_REWRITTEN)}}),
    case("N1, tools with constants", CHAT, _CHAT | {"tools": [_FUNCTION] * 44}),
    case("N1, Lark grammars", CHAT, _CHAT | {"tools": wide.grammars('start: ("a"|"b")~1..9')(USUAL)}),
    case("N1, patterns", CHAT, _CHAT | custom_tools(*(f"{number}" + "(a|b)" * 900 for number in range(12)))),
    case("N2 by chat", CHAT, _CHAT | _TALK | _LIKELY | {"n": 24}),
    case("N2 by completions", COMPLETIONS, {**_COMPLETION, "logprobs": 5, "n": 96} | _TALK),
    case("N2, of the prompt", COMPLETIONS, {**_COMPLETION, "prompt": "word" * 8000, "prompt_logprobs": 20}),
    case("N2 in a stream", CHAT, _CHAT | _LIKELY | {"n": 64, "stream": True, "max_tokens": 20}),
    case("N3, messages", "/tokenize", {"model": "chat", "messages": [USER] * 401}),
    case("N3, a count", COUNT_TOKENS, {"model": "chat", "messages": [USER | {"content": "a1234 b567 " * 1400}]}),
    case("N6, 380 turns", RESPONSES, {"model": "chat", "input": [USER | {"content": "\u00e9" * 18}] * 380} | _SHORT),
    case("N6, 3,900 turns", RESPONSES, {"model": "chat", "input": [USER | {"content": "\u00e9" * 8}] * 3900} | _SHORT),
    case("N8, vectors", "/v1/embeddings", {"model": "embedder", "input": ["a"] * 2048}),
    case("N8, base64", "/v1/embeddings", {"model": "embedder", "input": ["a"] * 2048, "encoding_format": "base64"}),
    case(
        "N8, labels",
        "/v1/classify",
        {"model": "classifier", "input": ["a"] * 2048},
    ),
    case("N8, documents", "/v1/rerank", {"model": "reranker", "query": "a", "documents": ["a"] * 2048}),
    case("long answers", CHAT, _CHAT | {"ignore_eos": True, "max_tokens": 8000, "n": 16}),
    case(
        "half calls",
        CHAT,
        {
            "model": "chat",
            "messages": [USER | {"content": "SAY <tool_call>"}],
            "tools": _TOOLS[:1],
            "ignore_eos": True,
            "max_tokens": 8000,
            "n": 16,
        },
    ),
    case("tools of many choices", CHAT, _CHAT | {"tools": _TOOLS, "n": 128}),
    case(
        "a turn of thoughts",
        RESPONSES,
        {"model": "chat", "input": [{"type": "reasoning", "summary": []}] * 4095 + [USER]},
    ),
    case("messages of four bytes", CHAT, {"model": "chat", "messages": ["a"] * 4096}),
    case("rare characters", "/tokenize", {"model": "chat", "prompt": "\u0323" * 249_000}),
    case("a long stream", CHAT, _CHAT | {"ignore_eos": True, "max_tokens": 3000, "stream": True}),
)


@pytest.mark.parametrize(("name", "path", "body"), ATTACKS)
def test_no_attack_holds_the_loop(server: GuardedServer, name: str, path: str, body: Mapping[str, Any]) -> None:
    payload = json.dumps(body, ensure_ascii=False).encode()
    found = server.complaint(name, post(payload, path))
    assert found is None, found
    assert server.status in (200, 400)


@st.composite
def wide_bodies(draw: st.DrawFn, path: str, fields: Mapping[str, Sequence[Fill]]) -> dict[str, Any]:
    """Draw a body with one field that is as large as it gets, and up to two others."""
    body = dict(BODIES[path])
    sizes = st.sampled_from((USUAL, USUAL, USUAL, 4000, 500_000))
    for size in (draw(sizes), *draw(st.lists(st.sampled_from((100, 5000)), max_size=2))):
        field = draw(st.sampled_from(sorted({*fields, "nobody"})))
        fillers = (*fields.get(field, ()), *wide.values()) if fields is FIELDS.get(path) else fields.get(field, ())
        if fillers:
            body[field] = draw(st.sampled_from(fillers))(size)
    if draw(st.booleans()):
        body |= wide.names(draw(st.sampled_from((1, "a", []))))(draw(st.sampled_from((1000, 20_000))))
    if path in (CHAT, COMPLETIONS):
        body |= {"n": draw(st.sampled_from((None, None, 2, 128))), "stream": draw(st.booleans())}
    if path == "/tokenize" and "messages" in body:
        del body["prompt"]
    return body


def check_generated(server: GuardedServer, path: str, fields: Mapping[str, Sequence[Fill]], num_bodies: int) -> None:
    statuses = set()

    @settings(max_examples=num_bodies, phases=(Phase.generate,), report_multiple_bugs=False)
    @given(body=wide_bodies(path, fields))
    def send(body: dict[str, Any]) -> None:
        shown = {name: f"{json.dumps(value)[:80]}, {wide.size_of(value)} bytes" for name, value in body.items()}
        found = server.complaint(f"{path} {shown}", post(json.dumps(body, ensure_ascii=False).encode(), path))
        statuses.add(server.status)
        assert found is None, found

    send()
    assert max(statuses) < 500
    assert 200 in statuses


@pytest.mark.parametrize(
    "num_bodies", [NUM_BODIES, pytest.param(NUM_MANY_BODIES, marks=pytest.mark.faults)], ids=("some", "many")
)
@pytest.mark.parametrize("path", FIELDS)
def test_no_wide_body_holds_the_loop(server: GuardedServer, path: str, num_bodies: int) -> None:
    check_generated(server, path, FIELDS[path], num_bodies)


@pytest.mark.parametrize(
    "num_bodies", [NUM_BODIES, pytest.param(NUM_MANY_BODIES, marks=pytest.mark.faults)], ids=("some", "many")
)
@pytest.mark.parametrize("path", SCHEMAS)
def test_no_schema_holds_the_loop(server: GuardedServer, path: str, num_bodies: int) -> None:
    check_generated(server, path, SCHEMAS[path], num_bodies)


@pytest.fixture(scope="module")
def slow_server() -> Iterator[GuardedServer]:
    """A server whose threads are measured, too."""
    with guarded_server(has_threads=True) as server:
        warm_up(server)
        yield server


def test_no_large_body_keeps_pythons_lock(slow_server: GuardedServer) -> None:
    sent = [(attack.__name__, *attack("chat")) for attack in {*large.ATTACKS, *large.CROWDS}]
    for path, field, fill in (
        (CHAT, "messages", wide.text("a b ")),
        (RESPONSES, "include", wide.many({"a": 1})),
        (MESSAGES, "system", wide.many({})),
        (COMPLETIONS, "stop", wide.many(1)),
    ):
        sent.append((field, path, json.dumps({**BODIES[path], field: fill(2_000_000)}).encode()))
    check(slow_server, ((name, post(body, path)) for name, path, body in sent))


FEW_UNITS = 10  # of a planted fault: each one is seen in four tries


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> GuardedServer:
    """The server with a lower bound, which no usual request reaches."""
    server: GuardedServer = request.getfixturevalue("server")
    monkeypatch.setattr(server.guard, "max_units", FEW_UNITS)
    return server


def slow(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that works for a while first."""

    def slowed(*arguments: Any, **options: Any) -> Any:
        end = time.thread_time() + 4 * FEW_UNITS * unit_s()
        while time.thread_time() < end:
            pass
        return function(*arguments, **options)

    return slowed


@pytest.mark.parametrize(
    ("module", "name", "path"),
    [
        ("frontend.handlers.bodies", "parse", CHAT),
        ("frontend.protocol.reading", "_ignored", CHAT),
        ("frontend.handlers.call", "quote", CHAT),
        ("frontend.handlers.call", "ignored_fields", CHAT),
        ("frontend.translate.requests", "message_for_template", CHAT),
        ("frontend.translate.message_chat", "_tool_fields", MESSAGES),
        ("frontend.gateway.limited", "_num_tokens", CHAT),
        ("frontend.triton.call", "pack", CHAT),
        ("frontend.triton.call", "unpack", CHAT),
        ("frontend.translate.chat_reply", "total_usage", CHAT),
        ("frontend.translate.sse", "_on_one_line", RESPONSES),
        ("frontend.telemetry.observer", "labels_text", CHAT),
    ],
)
def test_a_planted_fault_is_found_by_name(
    strict: GuardedServer, module: str, name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = importlib.import_module(module)
    monkeypatch.setattr(planted, name, slow(getattr(planted, name)))
    body = {**BODIES[path], "nobody": 1, "stream": path == RESPONSES, "max_output_tokens": 1}
    found = strict.complaint("planted", post(body, path))
    assert found is not None
    assert found.startswith("planted: ")
    assert f"{module.replace('.', '/')}.py:" in found


def test_a_planted_fault_in_a_thread_is_found_by_name(
    slow_server: GuardedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(model: Any, content: bytearray, settings: Any) -> Any:
        sum(range(8_000_000))  # in C, which keeps Python's lock
        return parse(model, content, settings)

    parse = importlib.import_module("frontend.protocol.reading").parse
    monkeypatch.setattr("frontend.handlers.bodies.parse", work)
    monkeypatch.setattr(slow_server.guard, "max_units", FEW_UNITS)
    found = slow_server.complaint("planted", post({**_COMPLETION, "prompt": "a" * 70_000}, COMPLETIONS))
    assert found is not None
    assert "sum called by" in found
    assert "in another thread" in found


@pytest.mark.parametrize(("num_slow", "is_found"), [(NUM_TRIES - 1, False), (NUM_TRIES, True)])
def test_a_request_must_be_slow_in_each_try(
    strict: GuardedServer, num_slow: int, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may make one try slow."""
    parse, calls = importlib.import_module("frontend.protocol.reading").parse, itertools.count()

    def parse_slowly(*arguments: Any) -> Any:
        return (slow(parse) if next(calls) < num_slow else parse)(*arguments)

    monkeypatch.setattr("frontend.handlers.bodies.parse", parse_slowly)
    assert (strict.complaint("planted", post(_CHAT, CHAT)) is not None) is is_found


def test_a_collection_of_garbage_does_not_count(strict: GuardedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = importlib.import_module("frontend.protocol.reading").parse

    def parse_after_collections(*arguments: Any) -> Any:
        end = time.thread_time() + 4 * FEW_UNITS * unit_s()
        while time.thread_time() < end:
            gc.collect()
        return parse(*arguments)

    monkeypatch.setattr("frontend.handlers.bodies.parse", parse_after_collections)
    assert strict.complaint("collected", post(_CHAT, CHAT)) is None
