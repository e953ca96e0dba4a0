"""Each test that docs/security.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", (ROOT / "docs" / "security.md").read_text()))
    assert len(named) > 20
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
