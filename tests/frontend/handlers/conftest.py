"""Fixtures of the handlers' tests."""

from __future__ import annotations

import pytest

from frontend.handlers import fetching


@pytest.fixture
def loopback_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "is_public", lambda address: address in ("127.0.0.1", "::1"))
