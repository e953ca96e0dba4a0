"""The table of options in docs/gpu.md, against the code."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from model_repository.engine.tensorrt_llm.options import TensorRtLlmOptions

PAGE = (Path(__file__).parents[4] / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_the_options_are_those_of_the_runtime_with_their_defaults() -> None:
    table = PAGE.partition("| option |")[2].partition("\n\n")[0].splitlines()[2:]
    found = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]
    assert [name for name, *_ in found] == [field.name for field in dataclasses.fields(TensorRtLlmOptions)]
    given = {name: default for name, default, *_ in found if default}
    assert TensorRtLlmOptions.of(given) == TensorRtLlmOptions()
