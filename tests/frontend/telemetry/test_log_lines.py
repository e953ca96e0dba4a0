"""The line of a request: in every log but that of an interactive `serve`."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from frontend.launcher import command
from frontend.launcher.errors import LaunchError
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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_serve_has_request_lines_unless_it_runs_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    given: dict[str, Any] = {}

    def launcher(*arguments: object, **options: object) -> None:
        given.update(options)
        raise LaunchError("not started")

    monkeypatch.setattr(command, "Launcher", launcher)
    monkeypatch.setattr(command, "_call_at_signals", lambda function: None)
    err = io.StringIO()
    monkeypatch.setattr(err, "isatty", lambda: is_terminal)
    with pytest.raises(LaunchError):
        command.serve(None, io.StringIO(), err)  # type: ignore[arg-type]
    assert given == {"has_request_lines": not is_terminal}
