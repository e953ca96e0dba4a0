"""Plain chats are read as their model reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.plain_chat import plain_chat
from frontend.protocol.reading import parse
from frontend.settings import Settings
from tests.frontend.bodies import USER

CHAT = {"model": "m", "messages": [USER]}
NUMBERS = (
    st.integers() | st.integers(-3, 200) | st.floats(-3, 3) | st.sampled_from([0, 1, 2**31, 2**63, -(2**63), -0.0])
)
VALUES = st.none() | st.booleans() | st.text(max_size=3) | NUMBERS
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool", "x"]), "content": VALUES},
        optional={"name": VALUES},
    ),
    max_size=3,
)
OPTIONS = st.dictionaries(st.sampled_from(["include_usage", "include_timing", "foo"]), VALUES, max_size=2)
FIELDS = st.dictionaries(st.sampled_from([*ChatCompletionRequest.model_fields, "foo"]), VALUES)
PLAIN = st.dictionaries(st.sampled_from(["n", "seed", "top_p", "top_k", "temperature", "max_tokens"]), NUMBERS)


def read_by_model(body: bytes, monkeypatch: pytest.MonkeyPatch) -> ChatCompletionRequest:
    """Return the chat in a body as its model reads it, and check that no part of it is ignored."""
    with monkeypatch.context() as patched:
        patched.setattr("frontend.protocol.reading.plain_chat", lambda body: None)
        chat, ignored = parse(ChatCompletionRequest, body, Settings())
    assert not ignored
    return chat


def check(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a plain chat is the one that its model reads, down to the types."""
    if (chat := plain_chat(body)) is None:
        return
    expected = read_by_model(body, monkeypatch)
    found, wanted = (json.dumps(each.model_dump(), sort_keys=True) for each in (chat, expected))
    assert (chat, found) == (expected, wanted)


@pytest.fixture(scope="module")
def patch() -> Any:
    """Return a monkeypatch that examples share."""
    return pytest.MonkeyPatch()


@given(fields=FIELDS | PLAIN, messages=MESSAGES | st.just([USER]), options=st.none() | OPTIONS, is_stream=st.booleans())
@example(fields={"temperature": 1, "top_p": 0.5}, messages=[USER], options={"include_usage": True}, is_stream=True)
def test_a_plain_chat_is_read_as_its_model_reads_it(
    patch: pytest.MonkeyPatch, fields: dict[str, Any], messages: Any, options: Any, is_stream: bool
) -> None:
    body = {"model": "m", **fields, "messages": messages, "stream": is_stream, "stream_options": options}
    check(json.dumps(body).encode(), patch)


@pytest.mark.parametrize(
    "text",
    [
        '{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        '{"model":"m","messages":[{"role":"user","content":"\\ud83d\\ude00 \\u0000"}]}',
        '{"model":"m","messages":[{"role":"user","content":"a\nb"}]}',
        '{"model":"m","messages":[{"role":"user","content":"x"}],"top_p":1e400}',
        '{"model":"m","messages":[{"role":"user","content":"x"}],"top_p":NaN}',
        '{"model":"m","messages":[{"role":"user","content":"x"}],"n":1.0}',
        '{"model":"m","messages":[{"role":"user","content":"x"}],"n":1,"n":2}',
        '{"model":"m","messages":[{"role":"user","content":"x"}],"n":01}',
        '{"model":"m","messages":[{"role":"user","content":"x"}],"top_p":.5}',
        '{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":-0.0}',
        '{"model":"m","messages":[{"role":"user","content":"x"}]} x',
        '\ufeff{"model":"m","messages":[{"role":"user","content":"x"}]}',
        ' {"model" : "m", "messages" : [ {"content" : "x", "role" : "user"} ] }\n',
    ],
)
def test_hostile_bytes_are_read_as_the_model_reads_them(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(text.encode("utf-8", "surrogatepass"), monkeypatch)


@pytest.mark.parametrize("raw", [b"\xff", b"\xed\xa0\x80", b"\x01"])
def test_bytes_that_are_no_text_are_left_to_the_model(raw: bytes) -> None:
    assert plain_chat(b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % raw) is None


def test_the_chats_of_most_clients_are_plain() -> None:
    fields = {"temperature": 0.7, "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    assert plain_chat(json.dumps(CHAT | fields).encode()) is not None
    assert plain_chat(json.dumps(CHAT | {"stop": "x"}).encode()) is None
