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


def main(url: str, operations_url: str, folder: Path) -> None:
    """Write the pictures: the playground on a light, a dark and a small screen, and the page of the server's state."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, size, scheme, label in (
            ("playground", (1200, 820), "light", "Prompt"),
            ("playground-dark", (1200, 820), "dark", "Tokens"),
            ("playground-phone", (390, 780), "light", "Time"),
        ):
            browser.resize(*size, scheme=scheme)
            browser.open(url)
            browser.run("document.getElementById('temperature').value = 0")
            for text in ("What is the capital of France?", "Hello, who are you?"):
                browser.ask(text)
            browser.one("article:last-child .details button", label).click()
            for row in browser.all(".tokens"):
                row.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
            browser.one(".panel")
            _save(browser, folder / f"{name}.png")
        browser.resize(1200, 700)
        browser.open(operations_url)
        browser.one(".model")
        _save(browser, folder / "status.png")


def _save(browser: Browser, path: Path) -> None:
    picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(_NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
