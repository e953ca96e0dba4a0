"""The table of TensorRT-LLM's names in docs/gpu.md, against the record and the start options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.engine.runtime import EngineConfig
from model_repository.engine.tensorrt_llm.llm import llm_keywords
from model_repository.engine.tensorrt_llm.options import TensorRtLlmOptions
from tests.model_repository.engine.tensorrt_llm.test_releases import RECORDS

PAGE = (Path(__file__).parents[4] / "docs" / "gpu.md").read_text(encoding="utf-8")
RECORD: dict[str, Any] = RECORDS["1.2.1"]


def rows() -> dict[str, tuple[list[str], str]]:
    """Return the names of each row of the table of Python names, and its status."""
    table = PAGE.partition("| of Python | names | status |\n")[2].partition("\n\n")[0]
    cells = (line.strip("|").split("|") for line in table.splitlines()[1:])
    return {cell[0].strip(): (re.findall(r"`(\w+)`", cell[1]), cell[2].strip()) for cell in cells}


def recorded_names(of: str) -> set[str]:
    """Return the certain parameters, members and attributes of a class or method, by the end of its name."""
    names: set[str] = set()
    for name, entry in RECORD["callables"].items():
        if of in name.removesuffix(".__init__").split("."):
            params = [param for param in entry["params"] if not param.get("uncertain")]
            names |= {param["name"] for param in params} | {name.rpartition(".")[2]}
            names |= {key for param in params for key in param.get("allowed_keys", ())}
    for attribute in RECORD["classes"].get(of, {}).get("attributes", ()):
        names.add(attribute["name"])
    return names | set(RECORD["enums"].get(of, ()))


@pytest.mark.parametrize(
    "row", [row for row, (names, status) in rows().items() if row.startswith("`") and status.startswith("recorded")]
)
def test_recorded_names_are_in_the_record(row: str) -> None:
    names, of = rows()[row][0], row.strip("`")
    known = recorded_names(of) | (recorded_names("GenerationResult") if of == "RequestOutput" else set())  # its base
    assert set(names) <= known, sorted(set(names) - known)


@pytest.mark.engine_backend
def test_the_page_lists_the_keywords_of_the_start(config: EngineConfig) -> None:
    used: set[str] = set()
    for backend in ("engine", "pytorch"):
        options = {"backend": backend, "guided_decoding": "xgrammar", "max_num_tokens": "64", "lora_modules": "attn_q"}
        used |= llm_keywords(config, TensorRtLlmOptions.of(options)).keys()
    graphs = TensorRtLlmOptions.of({"cuda_graph_mode": "true"})
    used |= llm_keywords(replace(config, adapters={}), graphs).keys()
    assert used | {"_mpi_session"} == set(rows()["`LLM`"][0])
