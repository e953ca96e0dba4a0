"""The line of a request: in every log but that of an interactive `serve`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from frontend.telemetry.log_lines import NO_REQUEST_LINES, REQUEST_LOGGER, configure_logging


@pytest.fixture
def request_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger(REQUEST_LOGGER)
    yield logger
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("is_off", [True, False])
def test_the_variable_turns_request_lines_off(
    monkeypatch: pytest.MonkeyPatch, request_logger: logging.Logger, is_off: bool
) -> None:
    if is_off:
        monkeypatch.setenv(NO_REQUEST_LINES, "1")
    configure_logging("text")
    assert request_logger.isEnabledFor(logging.WARNING)
    assert (request_logger.level == logging.WARNING) is is_off
