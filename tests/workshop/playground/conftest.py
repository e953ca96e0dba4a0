"""A real browser, and the playground over a fake Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from axe_selenium_python import Axe

from model_repository.contract.request import ChatPrompt, GenerationRequest
from tests.browser import Browser, Served, chromium, serving
from tests.fakes import FakeTriton

type Play = Callable[..., Served]


def messages_of(request: GenerationRequest) -> list[Any]:
    """Return roles and contents of a chat."""
    assert isinstance(request.prompt, ChatPrompt)
    return [(message["role"], message["content"]) for message in request.prompt.messages]


def violations(browser: Browser) -> list[Any]:
    """Return what axe finds: rules with their elements."""
    axe = Axe(browser.driver)
    axe.inject()
    found = axe.run()["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(chrome: Browser) -> Browser:
    """A large light screen, without earlier messages."""
    chrome.resize(1280, 900)
    chrome.open("about:blank")
    chrome.messages()
    return chrome


@pytest.fixture
def play(browser: Browser) -> Iterator[Play]:
    """Serve a Triton, and open its playground."""
    with ExitStack() as stack:

        def start(triton: FakeTriton, **settings: Any) -> Served:
            served = stack.enter_context(serving(triton, **settings))
            everything = {"origin": served.url, "storageTypes": "all"}
            stack.callback(browser.driver.execute_cdp_cmd, "Storage.clearDataForOrigin", everything)
            browser.open(served.url)
            return served

        yield start
        browser.open("about:blank")
