"""The chats that the browser keeps, files of a message, and two answers beside each other, in a real browser."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import ChatPrompt, GenerationRequest
from tests.browser import Browser, needs_chromium
from tests.fakes import FakeTriton, Script, chunks, served_model
from tests.frontend.gateway.key_files import KeyFile
from tests.pictures import circle
from tests.waiting import wait_until
from tests.workshop.playground.conftest import Play, messages_of, violations

pytestmark = [needs_chromium, pytest.mark.usefixtures("servers")]

_SEARCH = """
const [key, text, done] = arguments;
import("/pages/history.js").then(async ({ Store }) => done((await (await Store.open(key)).search(text)).size));
"""
_NOTE_BODIES = """
window.bodies = [];
const sent = window.fetch;
window.fetch = (path, options) => {
  if (options?.body) window.bodies.push(JSON.parse(options.body));
  return sent(path, options);
};
"""
_REFUSE = """
const [key] = arguments;
const sent = window.fetch;
window.fetch = (path, options) => {
  const isRefused = options?.headers?.Authorization === `Bearer ${key}`;
  return sent(path, isRefused ? { ...options, headers: {} } : options);
};
"""
_DROP = """
const [name, text] = arguments;
const dataTransfer = new DataTransfer();
dataTransfer.items.add(new File([text], name));
document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
"""


def num_kept(browser: Browser, text: str, key: str = "") -> int:
    """Return how many chats the browser keeps with this text, in lower case."""
    return int(browser.driver.execute_async_script(_SEARCH, key, text))


def has_kept(browser: Browser, text: str, number: int) -> bool:
    """Return whether the browser keeps this number of chats with this text."""
    return num_kept(browser, text) == number


def titles(browser: Browser) -> list[str]:
    """Return the titles in the list of chats."""
    found: list[str] = browser.run(
        "return [...document.querySelectorAll('#list li > button')].map((e) => e.textContent)"
    )
    return found


def ask(browser: Browser, text: str, answer: str) -> None:
    """Get an answer, and wait until it is kept."""
    browser.ask(text)
    browser.one(".assistant footer button", "Copy")
    wait_until(lambda: num_kept(browser, answer.lower()), "the answer is kept")


@contextmanager
def another_tab(browser: Browser) -> Iterator[None]:
    """Show the page in another tab until the end of the block."""
    browser.run("window.open('about:blank')")
    [here, other] = browser.driver.window_handles
    url = browser.driver.current_url
    try:
        browser.driver.switch_to.window(other)
        browser.open(url)
        yield
    finally:
        browser.driver.close()
        browser.driver.switch_to.window(here)


def press_in_list(browser: Browser, label: str, title: str) -> None:
    """Click a button of a chat, which is seen only under the pointer."""
    browser.one("#list li", title)
    browser.run(f"document.querySelector('#list [aria-label=\"{label} {title}\"]').click()")


def exported(browser: Browser, folder: Path) -> Path:
    """Press Export, and return the file."""
    command = {"behavior": "allow", "downloadPath": str(folder)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", command)
    browser.press("Export")
    [path] = wait_until(lambda: list(folder.glob("conch-chats-*.json")), "the file")
    return path


def put_file(browser: Browser, field: str, path: Path) -> None:
    """Choose a file."""
    browser.run(f"document.getElementById('{field}').classList.remove('hidden')")
    browser.one(f"#{field}").send_keys(str(path))


def test_a_chat_goes_on_after_a_reload(browser: Browser, play: Play, tmp_path: Path) -> None:
    path = tmp_path / "circle.png"
    path.write_bytes(circle("red"))
    thought = "<think>\nIt is round.\n</think>"
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    thinking = served_model(reasoning_format="think", template_fields=("reasoning_content",))
    triton = FakeTriton([GenerationChunk(text=thought, spans=(len(thought), 0)), *chunks(call)], models=[thinking])
    play(triton)
    browser.one("#system").send_keys("Be brief.")
    browser.one("#temperature").send_keys("0.5")
    browser.run("document.querySelectorAll('aside details')[1].open = true")
    browser.press("Insert an example")
    put_file(browser, "file", path)
    browser.one("#attached img")
    browser.ask("What is this?")
    browser.one(".calls pre", "get_weather")
    triton.script = chunks("A circle.")
    browser.one(".calls textarea").send_keys("round")
    browser.press("Send results")
    browser.one(".assistant .text", "A circle.")
    wait_until(lambda: num_kept(browser, "a circle."), "the answer is kept")
    before = triton.requests[-1]

    browser.driver.refresh()
    browser.one(".assistant .text", "A circle.")
    assert len(browser.all(".user img")) == 1
    assert [each.text for each in browser.all(".said")] == ["What is this?", "get_weather: round"]
    assert browser.one(".calls textarea").get_attribute("value") == "round"
    assert not browser.one(".calls textarea").is_enabled()
    browser.ask("Really?")
    wait_until(lambda: len(triton.requests) == 3, "the third request")
    after = triton.requests[-1]
    assert isinstance(before.prompt, ChatPrompt) and isinstance(after.prompt, ChatPrompt)
    assert after.prompt.messages[:-2] == before.prompt.messages
    assert messages_of(after)[-2:] == [("assistant", "A circle."), ("user", "Really?")]
    assert (after.images, after.prompt.tool_use) == (before.images, before.prompt.tool_use)
    assert after.params.sampling.temperature == 0.5
    assert browser.messages() == []


def test_the_text_of_an_answer_that_has_not_ended_is_kept(browser: Browser, play: Play) -> None:
    triton = FakeTriton([GenerationChunk(text="One"), asyncio.Event()])
    play(triton)
    for number, leave in enumerate((browser.driver.refresh, lambda: browser.press("New chat")), start=1):
        browser.press("New chat")
        browser.ask("Count.")
        browser.one(".assistant .text", "One")
        wait_until(partial(has_kept, browser, "one", number), "the text so far is kept")
        leave()
        browser.one("#list li:first-child button", "Count.").click()
        browser.one(".assistant .text", "One")
    assert titles(browser) == ["Count.", "Count."]


def test_chats_are_found_renamed_and_deleted(browser: Browser, play: Play) -> None:
    play(FakeTriton(lambda request: chunks(f"You said {messages_of(request)[-1][1]}")))
    for text in ("First", "Second"):
        browser.press("New chat")
        ask(browser, text, f"You said {text}")
    assert titles(browser) == ["Second", "First"]
    browser.one("#search").send_keys("SAID first")
    browser.one("#found", "1 of 2 chats")
    assert titles(browser) == ["First"]
    browser.one("#list button", "First").click()
    browser.one(".assistant .text", "You said First")
    press_in_list(browser, "Rename", "First")
    browser.one("#title").send_keys(Keys.CONTROL, "a", Keys.NULL, "Numbers", Keys.ENTER)
    browser.one("#list li", "Numbers")
    browser.one("#search").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.BACKSPACE)
    wait_until(lambda: titles(browser) == ["Second", "Numbers"], "the new title")
    press_in_list(browser, "Delete", "Numbers")
    browser.one("dialog button", "Delete").click()
    wait_until(lambda: titles(browser) == ["Second"], "the deletion")
    browser.one("#welcome")
    browser.driver.refresh()
    browser.one("#list li", "Second")
    assert browser.all("#welcome")
    browser.press("Delete all")
    browser.one("dialog button", "Cancel").click()
    assert titles(browser) == ["Second"]
    browser.press("Delete all")
    browser.one("dialog button", "Delete all").click()
    browser.one("#found", "No chats yet")
    assert num_kept(browser, "") == 0


def test_exported_chats_are_imported_once(browser: Browser, play: Play, tmp_path: Path) -> None:
    play(FakeTriton(chunks("Yes.")))
    ask(browser, "Is it so?", "Yes.")
    path = exported(browser, tmp_path)
    text = path.read_text(encoding="utf-8")
    [chat] = json.loads(text)["chats"]
    assert [turn["message"] for turn in chat["turns"]] == [
        {"role": "user", "content": "Is it so?"},
        {"role": "assistant", "content": "Yes."},
    ]
    put_file(browser, "import", path)
    browser.one("#found", "Imported: 0. Already here: 1.")
    browser.press("Delete all")
    browser.one("dialog button", "Delete all").click()
    browser.one("#found", "No chats yet")
    browser.one("#import").send_keys(str(path))
    browser.one("#found", "Imported: 1.")
    browser.one("#list button", "Is it so?").click()
    browser.one(".assistant .text", "Yes.")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"turns": [{"message": {"role": "user", "content": [{"type": "toString"}]}}]},
        {"turns": [{"message": {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/v1"}}]}}]},
        {"turns": [{"message": {"role": "assistant", "content": [{"type": "text", "text": "A"}]}}]},
        {"turns": [], "second": {"message": {"role": "assistant", "content": "A"}}},
        {"settings": None},
    ],
    ids=["format", "part", "address", "answer", "second", "settings"],
)
def test_a_file_of_something_else_changes_nothing(
    browser: Browser, play: Play, tmp_path: Path, change: dict[str, Any]
) -> None:
    play(FakeTriton(chunks("Yes.")))
    chat: dict[str, Any] = {"id": "a", "title": "A", "changedAt": 1, "settings": {}, "turns": []} | change
    path = tmp_path / "chats.json"
    path.write_text(json.dumps({"format": "conch-chats", "chats": [chat]} | change), encoding="utf-8")
    browser.one("#found", "No chats yet")
    put_file(browser, "import", path)
    browser.one("#found", "The file has no chats of a Conch playground.")
    assert num_kept(browser, "") == 0


def test_each_key_has_chats_of_its_own(browser: Browser, play: Play, tmp_path: Path) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    keys = [key_file.add(name) for name in ("alice", "bob")]
    play(FakeTriton(chunks("Hello.")), key_file=str(key_file.path), web_pages="on")
    browser.one("#key").send_keys(keys[0], Keys.ENTER)
    browser.ask("I am Alice.")
    wait_until(lambda: num_kept(browser, "hello.", keys[0]), "the answer is kept")
    assert titles(browser) == ["I am Alice."]
    for key, expected in ((keys[1], []), (keys[0], ["I am Alice."])):
        browser.driver.refresh()
        browser.one("#key").send_keys(key, Keys.ENTER)
        browser.one("#model option")
        browser.one("#list li" if expected else "#found", "".join(expected) or "No chats yet")
        assert len(browser.all(".user")) == len(expected)
    databases = browser.driver.execute_async_script("indexedDB.databases().then(arguments[0])")
    assert len(databases) == 2
    assert not any(key in json.dumps(databases) for key in keys)
    text = exported(browser, tmp_path).read_text(encoding="utf-8")
    assert not any(key in text for key in keys)


def test_a_chat_stays_with_the_key_that_was_accepted_for_it(browser: Browser, play: Play, tmp_path: Path) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    alice, bob = (key_file.add(name) for name in ("alice", "bob"))
    triton = FakeTriton(lambda request: chunks(f"You said {messages_of(request)[-1][1]}"))
    play(triton, key_file=str(key_file.path), web_pages="on")
    browser.one("#key").send_keys(alice, Keys.ENTER)
    browser.ask("First")
    wait_until(lambda: num_kept(browser, "you said first", alice), "the answer is kept")
    browser.run(_REFUSE, alice)
    browser.ask("Second")
    browser.one("#key").send_keys("wrong", Keys.ENTER)
    wait_until(lambda: browser.one("#key").get_attribute("value") == "", "the second question")
    browser.run("document.getElementById('settings').dispatchEvent(new Event('change'))")  # has the chat kept
    browser.one("#key").send_keys(bob, Keys.ENTER)
    wait_until(lambda: num_kept(browser, "you said second", alice), "the second answer is kept")
    assert [num_kept(browser, "first", key) for key in ("", "wrong", bob)] == [0, 0, 0]

    browser.press("New chat")
    browser.run(_REFUSE, bob)
    browser.ask("Third")
    browser.one("dialog button", "Cancel").click()
    browser.one(".assistant .error")
    assert [num_kept(browser, "third", key) for key in ("", alice, bob)] == [0, 0, 0]


def test_nothing_is_kept_of_a_private_chat(browser: Browser, play: Play) -> None:
    play(FakeTriton(chunks("Yes.")))
    leave = "return dispatchEvent(new Event('beforeunload', {cancelable: true}))"
    ask(browser, "Is it so?", "Yes.")
    wait_until(lambda: browser.run(leave), "the chat is kept")
    browser.one("#private").click()
    browser.one("#found", "No chats yet")
    browser.ask("Really?")
    browser.one(".assistant:last-child footer button", "Copy")
    assert not browser.run(leave)
    assert num_kept(browser, "") == 0
    browser.one("#private").click()
    browser.one("#list li", "Is it so?")
    wait_until(lambda: num_kept(browser, "really?"), "the whole chat is kept")
    browser.press("New chat")
    browser.one("#private").click()
    browser.ask("A secret")
    browser.one(".assistant footer button", "Copy")
    browser.driver.refresh()
    browser.one("#list li", "Is it so?")
    assert browser.all("#welcome")
    assert num_kept(browser, "secret") == 0


_WITHOUT_HASHES = "Object.defineProperty(Crypto.prototype, 'subtle', { get: () => undefined });"


@pytest.mark.parametrize(
    ("script", "has_key", "reason"),
    [
        ("delete Window.prototype.indexedDB; delete window.indexedDB;", False, "the browser keeps no data"),
        (_WITHOUT_HASHES, True, "needs HTTPS"),
    ],
    ids=["no storage", "no hashes"],
)
def test_without_storage_the_page_says_so_and_works(
    browser: Browser, play: Play, tmp_path: Path, script: str, has_key: bool, reason: str
) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    key = key_file.add("alice")
    source = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    try:
        play(FakeTriton(chunks("Yes.")), **({"key_file": str(key_file.path), "web_pages": "on"} if has_key else {}))
        if has_key:
            browser.one("#key").send_keys(key, Keys.ENTER)
        for _ in range(2):
            browser.ask("Is it so?")
            browser.one(".assistant:last-child .text", "Yes.")
            browser.one("#unkept", reason)
        assert len(browser.all(".assistant")) == 2
        assert titles(browser) == []
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", source)


def test_a_chat_without_room_is_left_only_after_a_question(browser: Browser, play: Play) -> None:
    served = play(FakeTriton(chunks("Yes.")))
    quota = {"origin": served.url, "quotaSize": 1}
    browser.driver.execute_cdp_cmd("Storage.overrideQuotaForOrigin", quota)
    browser.ask("Is it so?")
    browser.one(".assistant .text", "Yes.")
    browser.one("#unkept", "no room left")
    assert num_kept(browser, "") == 0
    browser.press("New chat")
    browser.one("dialog button", "Cancel").click()
    assert browser.one(".assistant .text").text == "Yes."
    browser.driver.execute_cdp_cmd("Storage.overrideQuotaForOrigin", {"origin": served.url})
    ask(browser, "Really?", "really?")
    wait_until(lambda: not browser.all("#unkept"), "the chat is kept")
    browser.press("New chat")
    browser.one("#welcome")


def test_a_chat_that_another_tab_has_changed_is_not_overwritten(browser: Browser, play: Play) -> None:
    play(FakeTriton(lambda request: chunks(f"You said {messages_of(request)[-1][1]}")))
    ask(browser, "First", "You said First")
    with another_tab(browser):
        browser.one("#list button", "First").click()
        ask(browser, "Second", "You said Second")
    ask(browser, "Third", "You said Third")
    assert (num_kept(browser, "second"), num_kept(browser, "third")) == (1, 1)
    wait_until(lambda: titles(browser) == ["First", "First"], "both chats")


def test_a_tab_removes_no_chat_of_another_one_and_brings_none_back(browser: Browser, play: Play) -> None:
    play(FakeTriton(lambda request: chunks(f"You said {messages_of(request)[-1][1]}")))
    ask(browser, "First", "You said First")
    with another_tab(browser):
        browser.one("#list button", "First").click()
        ask(browser, "Second", "You said Second")
    browser.one("#private").click()
    browser.one("#private").click()
    wait_until(lambda: titles(browser) == ["First", "First"], "both chats")
    assert num_kept(browser, "second") == 1
    with another_tab(browser):
        browser.one("#list li")
        browser.press("Delete all")
        browser.one("dialog button", "Delete all").click()
        browser.one("#found", "No chats yet")
    browser.ask("Third")
    browser.one("#unkept", "another tab has deleted this one")
    assert num_kept(browser, "") == 0


def test_a_second_answer_is_beside_the_first_until_one_is_picked(browser: Browser, play: Play) -> None:
    def script(request: GenerationRequest) -> Script:
        return chunks(f"Answer {request.params.sampling.seed}")

    models = [served_model("org/demo"), served_model("org/other")]
    triton = FakeTriton(script, models=models)
    play(triton)
    browser.one("#seed").send_keys("1")
    ask(browser, "Count.", "Answer 1")
    browser.run("document.querySelector('.beside select').value = 'org/other'")
    browser.press("Beside")
    wait_until(lambda: num_kept(browser, "answer 2"), "the second answer is kept")
    assert triton.asked == [model.ensemble for model in models]
    for width, num_columns in ((1280, 2), (390, 1)):
        browser.resize(width, 900)
        assert violations(browser) == []
        places = browser.run("return [...document.querySelectorAll('.pair article')].map((each) => each.offsetLeft)")
        assert len(set(places)) == num_columns
    browser.resize(1280, 900)
    browser.ask("Go on.")
    browser.one("#notice", "Go on with one of the two answers first.")
    assert len(triton.requests) == 2

    browser.driver.refresh()
    browser.one(".pair article:last-child .text", "Answer 2")
    assert [each.text for each in browser.all(".pair .answerer")] == ["org/demo", "org/other"]
    browser.press("Go on with this answer")
    assert not browser.all(".pair")
    browser.ask("Go on.")
    wait_until(lambda: len(triton.requests) == 3, "the third request")
    assert messages_of(triton.requests[-1]) == [("user", "Count."), ("assistant", "Answer 2"), ("user", "Go on.")]
    assert triton.requests[-1].params.sampling.seed == 1
    assert browser.messages() == []


def test_a_file_is_a_part_of_its_message_and_kept_with_it(browser: Browser, play: Play, tmp_path: Path) -> None:
    play(FakeTriton(chunks("A report.")))
    browser.run(_NOTE_BODIES)
    pdf, program = tmp_path / "report.pdf", tmp_path / "program.exe"
    pdf.write_bytes(b"%PDF-1.7")
    program.write_bytes(b"MZ")
    put_file(browser, "file", program)
    browser.one("#notice", "program.exe has a type that cannot be sent.")
    browser.one("#file").send_keys(str(pdf))
    browser.one("#attached figure", "report.pdf")
    browser.run(_DROP, "notes.md", "# Notes")
    browser.one("#attached figure", "notes.md")
    assert not browser.all("#notice")
    browser.ask("What is this?")
    wait_until(lambda: num_kept(browser, "what is this?"), "the message is kept")
    [body] = browser.run("return window.bodies.filter((each) => each.messages)")
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                _file_part("report.pdf", "application/pdf", b"%PDF-1.7"),
                _file_part("notes.md", "text/markdown", b"# Notes"),
                {"type": "text", "text": "What is this?"},
            ],
        }
    ]
    browser.one(".assistant footer button", "Copy")
    browser.driver.refresh()
    browser.one(".user .attachment", "notes.md")
    assert [each.text for each in browser.all(".user .attachment")] == ["report.pdf", "notes.md"]


def _file_part(name: str, media_type: str, content: bytes) -> dict[str, Any]:
    data = f"data:{media_type};base64,{base64.b64encode(content).decode()}"
    return {"type": "file", "file": {"filename": name, "file_data": data}}


def test_a_long_list_is_drawn_in_pieces(browser: Browser, play: Play, tmp_path: Path) -> None:
    play(FakeTriton(chunks("Yes.")))
    said = [[{"message": {"role": "user", "content": f"Question {number:03}"}}] for number in range(120)]
    chats = [
        {"id": f"{number}", "title": f"Chat {number:03}", "changedAt": number, "settings": {}, "turns": turns}
        for number, turns in enumerate(said)
    ]
    path = tmp_path / "chats.json"
    path.write_text(json.dumps({"format": "conch-chats", "chats": chats}), encoding="utf-8")
    browser.one("#found", "No chats yet")
    put_file(browser, "import", path)
    browser.one("#found", "Imported: 120.")
    assert titles(browser) == [f"Chat {number:03}" for number in range(119, 69, -1)]
    browser.press("Show more")
    browser.press("Show more")
    wait_until(lambda: len(titles(browser)) == 120, "the whole list")
    assert not browser.all("#more")
    browser.one("#search").send_keys("question 007")
    wait_until(lambda: titles(browser) == ["Chat 007"], "the found chat")
