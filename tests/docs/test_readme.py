"""The comparison in README.md is that of the table in docs/performance.md."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

QUOTED = ("64 streams, new connections", "the same, each token an event", "32 clients, requests of one token")


def test_the_comparison_is_that_of_the_table() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    found = re.search(r"\| load \| Conch \| Dynamo ([\d.]+) \|\n(.*?)\n\n", text, re.DOTALL)
    assert found is not None
    version, table = found.groups()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[1:]]
    costs = {load: [re.findall(r"[\d,]+(?= us)", cell)[0] for cell in cells] for load, *cells in rows if load in QUOTED}
    [said] = [item for item in (ROOT / "README.md").read_text(encoding="utf-8").split("\n- ") if "Dynamo" in item]
    assert f"NVIDIA Dynamo {version}," in said
    assert re.findall(r"[\d,]+(?= us)", said) == [cost for load in QUOTED for cost in costs[load]]
