"""A real Chromium on our pages, and our application over a fake Triton beside it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from frontend.operations.supervisor import Supervisor
from frontend.server import app_runner, operations_runner
from frontend.settings import Settings
from tests.fakes import FakeTriton
from tests.waiting import wait_until

_DRIVER = shutil.which("chromedriver")
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900")

needs_chromium = pytest.mark.skipif(_DRIVER is None, reason="needs the Debian packages chromium and chromium-driver")


class Browser:
    """A page, as a reader with a keyboard uses it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load a page."""
        self.driver.get(url)

    def all(self, selector: str) -> list[WebElement]:
        """Return the visible elements of a CSS selector."""
        return [each for each in self.driver.find_elements(By.CSS_SELECTOR, selector) if each.is_displayed()]

    def one(self, selector: str, text: str = "") -> WebElement:
        """Wait for visible elements of a CSS selector with a text, and return the last one."""

        def found() -> list[WebElement]:
            with suppress(StaleElementReferenceException):  # the page has replaced one meanwhile
                return [each for each in self.all(selector) if text in each.text]
            return []

        return wait_until(found, f"{selector} {text!r}")[-1]

    def press(self, label: str) -> None:
        """Click the last button with this label."""
        self.one("button", label).click()

    def ask(self, text: str) -> None:
        """Send a message with the Enter key, once the page has its models and no answer is running."""
        self.one("#model option")
        self.one("#send")
        self.one("#input").send_keys(text, Keys.ENTER)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def messages(self) -> list[str]:
        """Return the warnings and errors of the browser's console, such as violations of the page's policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def resize(self, width: int, height: int, *, scheme: str = "light") -> None:
        """Look like a screen of this size with a colour scheme."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's Chromium until the end of the block."""
    options = webdriver.ChromeOptions()
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@dataclass(frozen=True)
class Served:
    """A running application."""

    url: str
    operations_url: str
    triton: FakeTriton


@contextmanager
def serving(triton: FakeTriton, **settings: Any) -> Iterator[Served]:
    """Serve a fake Triton in a thread of its own until the end of the block."""
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def start() -> list[str]:
        runner = app_runner(Settings(drain_timeout_s=0, **settings), {"fake:1": triton})
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        operations = operations_runner(runner, Supervisor(0))
        await operations.setup()
        stack.push_async_callback(operations.cleanup)
        opened = [await each.listen(host="127.0.0.1", port=0) for each in (runner, operations)]
        return [f"http://127.0.0.1:{port}" for [(_, port)] in opened]

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        url, operations_url = asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield Served(url, operations_url, triton)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
