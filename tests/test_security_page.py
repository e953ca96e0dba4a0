"""Each test that a page about safety names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["limits.md", "security.md"])
def test_every_test_that_the_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`(?:[\w/]+/)?(test_\w+\.py)`", (ROOT / "docs" / page).read_text()))
    assert len(named) > 10
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
