"""Ours and other servers' parsers read the same calls, but for the differences in README.md."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.workshop.format_oracles import agreement, foreign


@pytest.mark.skipif(
    not any(map(find_spec, foreign.ORACLES)), reason=f"needs {', '.join(foreign.ORACLES)}: README.md says how"
)
def test_parsers_differ_from_others_only_as_listed() -> None:
    listed = Path(__file__).with_name("README.md").read_text().splitlines()
    assert [line for line in agreement.table().splitlines() if line not in listed] == []
