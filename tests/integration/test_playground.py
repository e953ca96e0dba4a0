"""The playground in a real browser before the real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from model_repository.contract.tensors import model_id_to_ensemble, stage_name
from tests.browser import chromium, needs_chromium
from tests.integration.api import COMPLETIONS, Api
from tests.integration.replicas import frontend_of
from tests.integration.stack import PACED_MODEL, Stack
from tests.waiting import DEADLINE_S, wait_until

pytestmark = needs_chromium


def test_an_answer_streams_with_its_tokens_prompt_time_and_code(stack: Stack) -> None:
    with chromium() as browser:
        browser.open(stack.url)
        leave = "return dispatchEvent(new Event('beforeunload', {cancelable: true}))"
        assert browser.run(leave)
        browser.one("#temperature").send_keys("0")
        for _ in range(2):  # the second prompt is in the KV cache
            browser.press("New chat")
            browser.ask("What is the capital of France?")
            browser.one(".assistant .text", "The capital of France is Paris.")
            browser.one(".figures", "tokens/s")
            wait_until(lambda: browser.run(leave), "the chat is kept")
        browser.press("Tokens")
        browser.one(".alternatives .drawn", "The")
        browser.press("Prompt")
        browser.one(".panel", "were in the KV cache")
        browser.one(".tokens .cached", "capital")
        browser.press("Time")
        browser.one(".panel .legend", "Prefill")
        for label, *command in (("curl", "bash", "-c"), ("Python", sys.executable, "-c")):
            browser.press(label)
            copied = browser.one(".panel code").text
            done = subprocess.run([*command, copied], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
            assert "The capital of France is Paris." in done.stdout
        browser.one("#memory", "KV cache in use")
        browser.one("#private").click()
        assert not browser.run(leave)  # the conversation would be lost
        assert browser.messages() == []


@pytest.mark.faults
def test_an_answer_that_cannot_go_on_is_an_error_and_the_retry_an_answer(pair: list[Stack], tmp_path: Path) -> None:
    [stack, _] = pair
    with frontend_of([stack], tmp_path, "--resume-within-s=0") as frontend, chromium() as browser:
        browser.open(frontend.url)
        browser.one("#max_tokens").send_keys("1500")
        browser.ask("Hello")
        browser.one(".assistant .figures", "tokens/s")
        stack.kill_stage(stage_name(model_id_to_ensemble(PACED_MODEL), "engine"))
        assert browser.one(".assistant .error").text
        assert browser.one(".assistant .text").text
        one_token = {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": 1}

        def answers() -> bool:
            stack.start_again_if_ended()
            return Api(frontend.url).post(COMPLETIONS, one_token).status == 200

        wait_until(answers, "the engine is loaded again")
        browser.run("document.getElementById('max_tokens').value = 5")
        browser.press("Retry")
        browser.one(".assistant .figures", "5 tokens")
