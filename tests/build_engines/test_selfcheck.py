"""What a self-check is asked to do, and that it goes on where it can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.__main__ import main
from build_engines.errors import BuildError, CatalogError
from build_engines.selfcheck.order import ALIAS, DEMO_CATALOG, DEMO_CHECKPOINT, Order
from build_engines.selfcheck.server import serving
from build_engines.selfcheck.unproved import UNPROVED
from build_engines.tensorrt_llm.source import Source
from model_repository.engine.tensorrt_llm.options import Backend


def order(**fields: Any) -> Order:
    """Return an order with what every one has."""
    return Order(state_dir=Path("state"), report_dir=Path("report"), ready_timeout_s=10, **fields)


def test_of_several_models_the_smallest_is_taken_with_its_own_checkpoint() -> None:
    models = ["llama3.1:8b", "llama3.2:1b", "qwen2.5:7b"]
    entry, checkpoint = order(models=models, checkpoints=["eight", "one", "seven"]).chosen()
    assert (entry.model_id, checkpoint) == ("meta-llama/Llama-3.2-1B-Instruct", "one")
    assert order(models=models).chosen()[1] == "meta-llama/Llama-3.2-1B-Instruct"


def test_without_a_model_it_is_the_demo_model_whose_entry_fits_its_checkpoint() -> None:
    entry, checkpoint = order().chosen()
    assert (entry.model_id, checkpoint) == ("demo", str(DEMO_CHECKPOINT))
    assert set(Source.load(DEMO_CHECKPOINT, entry).checkpoint.eos_token_ids) == set(entry.eos_token_ids)


def test_checkpoints_that_nobody_can_tell_apart_are_refused() -> None:
    with pytest.raises(BuildError, match="--checkpoint: given 1 times: expected none, or one for each MODEL"):
        order(models=["llama3.1:8b", "llama3.2:1b"], checkpoints=["one"])
    with pytest.raises(CatalogError, match="no-such-model"):
        order(models=["no-such-model"]).chosen()


def test_the_build_is_asked_for_what_the_table_of_parameters_needs() -> None:
    asked = order(gpu="h100", precision="f16", max_batch_size=16, examples=Path("clone"))
    arguments = asked.build_arguments(*asked.chosen())
    assert arguments[:6] == ["-m", "build_engines", "build", "demo", "--runtime", "tensorrt_llm"]
    given = dict(zip(arguments[4::2], arguments[5::2], strict=True))
    assert given["--catalog"] == str(DEMO_CATALOG)
    assert (given["--alias"], given["--option"]) == (ALIAS, "prompt_logprobs=true")
    assert (given["--precision"], given["--max-batch-size"]) == ("f16", "16")
    assert given["--tensorrt-llm-examples"] == "clone"
    assert "--option" not in order(backend=Backend.PYTORCH).build_arguments(*order().chosen())


def test_a_build_that_fails_ends_with_a_report_of_all_that_was_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no nvidia-smi, on any machine
    report_dir = tmp_path / "report"
    status = main(["selfcheck", "--gpu", "h100", "--state-dir", str(tmp_path / "state"), "--report", str(report_dir)])
    assert status == 1
    assert "report.md says what" in capsys.readouterr().err
    report = json.loads((report_dir / "report.json").read_text(encoding="utf-8"))
    verdicts = {each["title"]: [found["verdict"] for found in each["findings"]] for each in report["sections"]}
    assert verdicts == {
        "Machine": [],
        "Plan": [],
        "Build": ["failed"],
        "Verify": ["not tried"],
        "Server": ["not tried"],
    }
    machine, planned, build, *_ = report["sections"]
    assert "not told" in machine["facts"]["GPUs"]
    assert planned["lines"][0].startswith("demo on 1 x H100")
    assert "error: " in build["lines"][-1]
    assert "Failed: Build (1)." in (report_dir / "report.md").read_text(encoding="utf-8")


def test_what_is_not_proved_is_observed_or_has_a_reason_why_not() -> None:
    assert len({each.claim for each in UNPROVED}) == len(UNPROVED)
    assert all((each.observe is None) == bool(each.why_not) for each in UNPROVED)


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    with (
        pytest.raises(BuildError, match=r"the server ended with status 1:\n.*no-such-repository"),
        serving(tmp_path / "no-such-repository", tmp_path, log, timeout_s=10),
    ):
        raise AssertionError("it is not ready")
    assert "no-such-repository" in log.read_text(encoding="utf-8")
