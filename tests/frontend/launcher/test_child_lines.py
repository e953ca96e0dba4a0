"""The lines of several processes in one log."""

from __future__ import annotations

import json

import pytest

from frontend.launcher.child import json_line, text_line


def test_a_line_for_people_begins_with_its_process() -> None:
    assert text_line("triton", "started") == "[triton] started"


def test_an_object_stays_one_and_is_told_whose_it_is() -> None:
    line = json_line("frontend", '{"time": "now", "labels": {"é": 1.5}}')
    assert line == '{"process": "frontend", "time": "now", "labels": {"é": 1.5}}'


@pytest.mark.parametrize("text", ["I1122 started", "", "[1]", "7", '{"cut": ', "[" * 100_000, 'a "quoted" \\ word\x00'])
def test_what_is_no_object_becomes_one(text: str) -> None:
    line = json_line("triton", text)
    assert json.loads(line) == {"process": "triton", "message": text}
    assert line.isprintable()
