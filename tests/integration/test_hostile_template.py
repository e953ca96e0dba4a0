"""A chat template that fills the memory if the last message is a certain word."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from build_engines.__main__ import main
from tests.integration.api import CHAT, Api
from tests.integration.conftest import running_stack
from tests.integration.stack import DEMO_CHECKPOINT

TEMPLATE = """\
{% set word, one = messages[-1].content, messages | length %}
{% if word == 'fill' %}{{ 'a' * (5 * 10**9 * one) }}{% endif %}
{{ word }}"""


def test_a_hostile_template_fails_its_request_and_no_other(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(DEMO_CHECKPOINT, checkpoint)
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    build = ["build", "demo", "--checkpoint", str(checkpoint), "--runtime", "synthetic", "--state-dir", str(tmp_path)]
    assert main(build) == 0

    def chat(word: str) -> tuple[int, str]:
        answer = api.post(CHAT, {"model": "demo", "messages": [{"role": "user", "content": word}], "max_tokens": 2})
        return answer.status, "" if answer.status == 200 else answer.body["error"]["message"]

    with running_stack(tmp_path / "repository", tmp_path_factory) as stack:
        api = Api(stack.url)
        assert chat("hello") == (200, "")
        assert chat("fill") == (400, "messages: the model's chat template takes too much memory for it")
        assert chat("hello") == (200, "")
