"""The table of all plans, and its page docs/plans.md."""

from __future__ import annotations

from pathlib import Path

from build_engines.catalog import Catalog
from build_engines.gpus import GPUS
from build_engines.planner.overview import COMMAND, HEADER, outcomes, page, row

CATALOG = Catalog.load()
PAGE = Path(__file__).parents[3] / "docs" / "plans.md"


def test_the_page_equals_the_planners_output() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(CATALOG), f"run: {COMMAND}"


def test_the_table_has_every_model_on_every_gpu() -> None:
    table = list(outcomes(CATALOG, GPUS.values()))
    assert {(outcome.entry.model_id, outcome.gpu.key) for outcome in table} == {
        (entry.model_id, key) for entry in CATALOG for key in GPUS
    }
    assert all(len(row(outcome)) == len(HEADER) for outcome in table)
    refused = {
        (outcome.entry.short_name, outcome.gpu.key) for outcome in table if outcome.entry.presets and not outcome.plan
    }
    assert refused == {("DeepSeek-V2.5", key) for key in ("b200", "a100", "l40s")}
    assert all((outcome.plan is None) == bool(outcome.refusal) for outcome in table)
