"""The comparison in README.md is that of the newest table of docs/performance.md."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

QUOTED = ("64 streams, new connections", "the same, each token an event", "32 clients, requests of one token")


def test_the_comparison_is_that_of_the_newest_table() -> None:
    section = (
        (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").partition("## The path around the engine")[2]
    )
    text, _, tables = section.partition("| load | Conch | Dynamo |")
    first, *older = re.findall(r"\d+\.\d+\.\d+", text)  # versions of Dynamo, in the order of the tables
    assert all(_numbers(first) > _numbers(each) for each in older)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.partition("\n\n")[0].splitlines()[2:]]
    costs = {load: [re.findall(r"[\d,]+(?= us)", cell)[0] for cell in cells] for load, *cells in rows if load in QUOTED}
    [said] = [item for item in (ROOT / "README.md").read_text(encoding="utf-8").split("\n- ") if "Dynamo" in item]
    assert f"NVIDIA Dynamo {first}," in said
    assert re.findall(r"[\d,]+(?= us)", said) == [cost for load in QUOTED for cost in costs[load]]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
