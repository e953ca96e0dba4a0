"""The table of facts in which releases of TensorRT-LLM differ, against their records."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from model_repository.engine.tensorrt_llm.releases import RELEASES, Release, release_of, why_unsure

DATA = Path(__file__).parents[3] / "data"
RECORDS = {
    record["version"]: record
    for record in (json.loads(path.read_text(encoding="utf-8")) for path in DATA.glob("tensorrt_llm_contract*.json"))
}


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_each_fact_is_recorded_with_its_source(release: Release) -> None:
    record: dict[str, Any] = RECORDS[release.version]
    known = {source["id"] for source in record["sources"]}
    assert all(set(fact["source"]) and set(fact["source"]) <= known for fact in record["facts"].values())
    ours = dataclasses.asdict(release) | {"latent_chunk_gpus": list(release.latent_chunk_gpus)}
    assert ours.pop("version") == release.version
    assert ours == {name: record["facts"][name]["value"] for name in ours}


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_the_named_classes_are_of_the_release(release: Release) -> None:
    for name in (release.lora_config, release.cuda_graph_config):
        module, _, member = name.partition(":")
        assert member in RECORDS[release.version]["exports"][module]


@pytest.mark.parametrize(
    ("version", "known_as"),
    [
        (None, "1.2.1"),
        ("1.2.1", "1.2.1"),
        ("1.2.1+cu131", "1.2.1"),
        ("1.2.10", "1.2.1"),
        ("0.21.0", "1.2.1"),
        ("1.3.0rc11", "1.3.0rc29"),
        ("1.3.0rc29", "1.3.0rc29"),
        ("1.4.0rc1", "1.3.0rc29"),
        ("1.10.0", "1.3.0rc29"),
    ],
)
def test_an_unrecorded_release_is_taken_for_the_nearest_line(version: str | None, known_as: str) -> None:
    assert release_of(version).version == known_as


def test_only_an_unrecorded_release_is_warned_of() -> None:
    assert why_unsure("1.2.1") is None and why_unsure("1.2.1+cu131") is None
    reason = (
        "TensorRT-LLM 1.2.0: not tested with Conch, which treats this release as 1.2.1 (tested: 1.2.1 and 1.3.0rc29)"
    )
    assert why_unsure("1.2.0") == reason
