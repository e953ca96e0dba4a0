"""The playground in a real browser before the real server."""

from __future__ import annotations

from tests.browser import chromium, needs_chromium
from tests.integration.stack import Stack


@needs_chromium
def test_an_answer_streams_with_its_tokens_its_prompt_and_its_time(stack: Stack) -> None:
    with chromium() as browser:
        browser.open(stack.url)
        for _ in range(2):  # the second prompt is in the KV cache
            browser.press("New chat")
            browser.ask("What is the capital of France?")
            browser.one(".assistant .text", "The capital of France is Paris.")
            browser.one(".figures", "tokens/s")
        browser.press("Tokens")
        browser.one(".alternatives .drawn", "The")
        browser.press("Prompt")
        assert "were in the KV cache" in browser.one(".panel").text
        assert "capital" in browser.one(".tokens .cached", "capital").text
        browser.press("Time")
        assert "Prefill" in browser.one(".panel .legend").text
        assert "KV cache in use" in browser.one("#memory", "KV cache").text
        assert browser.messages() == []
