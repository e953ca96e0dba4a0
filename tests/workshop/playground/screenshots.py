"""Takes the pictures of docs/playground.md from a server with the demo model and an operations port.

python -m tests.workshop.playground.screenshots http://127.0.0.1:8000 http://127.0.0.1:8003 docs/pictures
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.keys import Keys

from tests.browser import Browser, chromium

_NUM_COLOURS = 64
_DELETE_CHAT = "document.querySelector('#list li:has([aria-current]) [aria-label^=Delete]').click()"


def main(url: str, operations_url: str, folder: Path) -> None:
    """Write the pictures: the playground on a light, a dark and a small screen, and the page of the server's state."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        browser.resize(1200, 820)
        browser.open(url)
        for text in ("How do you say cat in Japanese?", "Count from 1 to 20.", "What can you do?"):
            _chat(browser, text)
        for name, size, scheme, label in (
            ("playground", (1200, 820), "light", "Prompt"),
            ("playground-dark", (1200, 820), "dark", "Tokens"),
            ("playground-phone", (390, 780), "light", "Time"),
        ):
            browser.resize(*size, scheme=scheme)
            _chat(browser, "What is the capital of France?", "Hello, who are you?")
            browser.one("article:last-child .details button", label).click()
            for row in browser.all(".tokens"):
                row.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
            browser.one(".panel")
            _save(browser, folder / f"{name}.png")
            browser.run(_DELETE_CHAT)
            browser.one("dialog button", "Delete").click()
            browser.one("#welcome")
        browser.press("Chats")
        browser.one("#list button", "Count from 1 to 20.").click()
        browser.press("Chats")
        _save(browser, folder / "playground-chats.png")
        browser.resize(1200, 620)
        _chat(browser, "Hello, who are you?")
        browser.run("document.querySelector('.beside select').value = 'demo-formal'")
        browser.press("Beside")
        browser.one(".pair article:last-child button", "Copy")
        _save(browser, folder / "playground-beside.png")
        browser.resize(1200, 700)
        browser.open(operations_url)
        browser.one(".model")
        _save(browser, folder / "status.png")


def _chat(browser: Browser, *texts: str) -> None:
    browser.press("New chat")
    browser.run("document.getElementById('temperature').value = 0")
    for number, text in enumerate(texts, start=1):
        browser.ask(text)
        browser.one(f"article:nth-child({2 * number}) button", "Copy")


def _save(browser: Browser, path: Path) -> None:
    picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(_NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
