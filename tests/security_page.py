"""Reads the table of docs/security.md: the APIs of each port and their callers."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "security.md"
EVERYBODY = "everybody"

_ROW = re.compile(r"\| (?P<port>[^|]+) \| (?P<apis>`[^|]+`) \| (?P<who>[^|]+) \|")


def offered_to(port: str) -> dict[str, str]:
    """Return the allowed callers of each API of a port, by the API's name."""
    rows = [row for row in _ROW.finditer(PAGE.read_text(encoding="utf-8")) if row["port"] == port]
    return {api: row["who"] for row in rows for api in re.findall("`([^`]+)`", row["apis"])}
