from __future__ import annotations

import json

from frontend import sse
from frontend.errors import EngineFailed


def test_an_event_is_one_data_line_and_an_empty_one() -> None:
    assert sse.event({"text": "é\n"}) == 'data: {"text":"é\\n"}\n\n'.encode()


def test_line_breaks_of_unicode_cannot_cut_an_event() -> None:
    text = "a\u0085b\u2028c\u2029d"
    event = sse.event({"text": text}).decode()
    assert len(event.strip().splitlines()) == 1
    assert json.loads(event.removeprefix("data: ")) == {"text": text}


def test_an_error_event_has_the_envelope() -> None:
    event = json.loads(sse.error_event(EngineFailed()).removeprefix(b"data: "))
    assert event["error"]["type"] == "server_error"
    assert event["error"]["code"] == "engine_failed"


def test_done_is_openais() -> None:
    assert sse.DONE == b"data: [DONE]\n\n"
