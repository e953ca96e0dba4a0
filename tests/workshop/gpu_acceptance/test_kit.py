"""The GPU acceptance kit without a GPU."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from build_engines.catalog import Catalog
from build_engines.tensorrt_llm.source import Source
from model_repository.system.machine import Machine
from tests.build_engines.stand_in_hub import Repository, stand_in_hub
from tests.build_engines.tensorrt_llm.builder import H100, write_examples
from tests.gpu_image import GpuImage, gpu_image
from tests.tensorrt_llm_artifact import DEMO, DEMO_CATALOG
from tests.waiting import DEADLINE_S
from tests.workshop.gpu_acceptance import __main__ as kit
from tests.workshop.gpu_acceptance import claims, faults, measuring
from tests.workshop.gpu_acceptance.reference import TOLERANCE, Case, lacks
from tests.workshop.gpu_acceptance.report import LeftOut, Step
from tests.workshop.gpu_acceptance.servers import Host, Served
from tests.workshop.gpu_acceptance.steps import CHECKS, STEPS, Plan, downloads, engine
from tests.workshop.gpu_acceptance.subject import Stream, Subject

ROOT = Path(__file__).parents[3]
DOUBLES = ROOT / "tests" / "doubles"
NAMES = [step.name for step in STEPS]
WITH_DOUBLES = {
    "PATH": f"{DOUBLES / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": f"{DOUBLES / 'python'}:{DOUBLES / 'reference'}:{ROOT}",
    "OPENBLAS_NUM_THREADS": "1",
}


def run(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the kit, and return its exit status, its report and its output."""
    places = ["--home", str(tmp_path / "state"), "--report", str(tmp_path / "report")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.workshop.gpu_acceptance", *places, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, (tmp_path / "report" / "report.md").read_text(encoding="utf-8"), done.stderr


def only(*names: str) -> list[str]:
    """Return the options that choose steps."""
    return [f"--only={name}" for name in names]


def outcomes(page: str) -> dict[str, str]:
    """Return the outcomes of the steps, by their names."""
    return dict(re.findall(r"^\| (\w+) \| .* \| (.*) \| [\d.]+ \|$", page.partition("\n## ")[0], re.MULTILINE))


def test_a_failed_build_gives_a_report_without_secrets(tmp_path: Path) -> None:
    status, page, _ = run(tmp_path, *only("pytorch", "texts"), PATH="", MY_TOKEN="TensorRT-LLM")
    assert status == 1
    assert "Failed: pytorch." in page
    found = outcomes(page)
    assert found.pop("texts") == "left out: small failed in the step pytorch"
    assert found.pop("pytorch") == "FAILED"
    assert set(found.values()) == {"left out: --only or --skip"} and len(found) == len(STEPS) - 2
    assert "[left out] is not installed" not in page and "TensorRT-LLM" not in page
    with tarfile.open(tmp_path / "report.tar.gz") as tar:
        texts = {name: file.read().decode() for name in tar.getnames() if (file := tar.extractfile(name)) is not None}
    assert "report/report.md" in texts
    assert not any("TensorRT-LLM" in text for text in texts.values())


def test_an_unmet_need_ends_the_run_with_one_line(tmp_path: Path) -> None:
    status, page, output = run(tmp_path, PATH="")
    assert status == 1
    found = outcomes(page)
    assert (found.pop("doctor"), found.pop("image")) == ("passed", "FAILED")
    [reason] = {text for text in found.values()}
    assert reason.startswith("left out: image: not so here: A GPU is visible, ")
    assert "| A GPU is visible | failed | " in page and "Look at: the driver, NVIDIA's container toolkit" in page
    assert output.count("\nended early: image: not so here: A GPU is visible, ") == 1


def test_checkpoints_of_later_steps_are_downloaded_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = kit.parser().parse_args(
        ["--speed-model=qwen2.5:7b", "--large-model=llama3.3:70b", f"--report={tmp_path}"]
    )
    host = Host(options, Machine(gpu_names=("H100", "H100")))
    names = ("Qwen/Qwen2.5-7B-Instruct", "nvidia/Llama-3.3-70B-Instruct-FP8")
    with stand_in_hub(dict.fromkeys(names, Repository(DEMO / "checkpoint"))) as endpoint:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        assert downloads(host, ["large", "peer"]) == [*downloads(host, ["schedulers"]), *downloads(host, ["replicas"])]
        with host.downloading(downloads(host, ["large", "peer"])) as process:
            assert process.wait(DEADLINE_S) == 0, (tmp_path / "downloads.log").read_text()
    fetched = [
        line.split("models--")[1].split("/")[0] for line in (tmp_path / "downloads.log").read_text().splitlines()
    ]
    assert fetched == [name.replace("/", "--") for name in names]


def test_the_page_marks_the_claims_that_the_acceptance_kit_tests() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    section = " ".join(page.partition("## Not proved on a GPU\n")[2].partition("\n## ")[0].split())
    mark = " *(tested by the kit)*"
    marked = [item.removesuffix(mark) for item in section.split(" - ")[1:] if item.endswith(mark)]
    tests = [test for name, test in vars(claims).items() if name.startswith("test_")]
    docstrings = [" ".join(test.__doc__.split()) for test in tests if test.__doc__]
    proved = [text for text in docstrings if "no benchmark" not in text]
    assert sorted(marked) == sorted([*proved, *(claim for step in STEPS for claim in step.proves)])


def test_the_page_names_each_step() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    section = page.partition("## The first hour on a host\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == NAMES


def test_the_checks_exist() -> None:
    for path, _, name in (check.partition("::") for check in CHECKS):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name or 'test_'}" in text, path


def test_the_catalog_has_the_end_tokens_of_the_demo_checkpoint() -> None:
    entry = Catalog.load(DEMO_CATALOG).find("demo")
    assert set(Source.load(DEMO / "checkpoint", entry).checkpoint.eos_token_ids) == set(entry.eos_token_ids)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> GpuImage:
    """The image of 1.2.1, with the server of our wheel, which needs numpy 1."""
    found = gpu_image(tmp_path_factory.mktemp("image"), "1.2.1")
    [site] = (found.root / "venv").glob("lib/python*/site-packages")
    for name in ("pytriton", "nvidia_pytriton.libs"):
        (site / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    return found


@pytest.mark.parametrize(
    "names",
    [("doctor", "image", "device", "pytorch", "texts", "adapters", "aborts", "pressure", "engine"),
     ("pauses", "schedulers", "peer", "large", "replicas", "triton", "faults")],
    ids=lambda names: names[-1],
)  # fmt: skip
def test_a_run_on_doubles_passes_and_names_the_double(image: GpuImage, tmp_path: Path, names: tuple[str, ...]) -> None:
    options = ["--quick", "--speed-model=demo", "--large-model=demo", *only(*names)]
    options += ["--tensorrt-llm-examples", str(write_examples(tmp_path / "examples"))]
    places = {"REPORT_DIR": str(tmp_path), "STATE_DIR": str(tmp_path / "state")}
    gpus = "\n".join([H100] * 8)
    command = image.command("selfcheck", *options, **places, CONCH_DOUBLE_GPUS=gpus, OPENBLAS_NUM_THREADS="1")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "selfcheck" / "report.md").read_text(encoding="utf-8")
    assert "test double" in page.lower() and "Everything that ran passed." in page
    assert [name for name, outcome in outcomes(page).items() if outcome == "passed"] == list(names)
    assert " | skipped | no process with " not in page
    assert "triton" not in names or "Triton 2.51.0: ready: True; not ready after " in page
    if "engine" in names:
        assert page.count(" | passed | ") > 120
        assert (
            "| The same seed gives the same text, on the engine backend. | skipped |"
            in page.partition("\n## engine")[0]
        )
        assert (
            "| The same seed gives the same text, on the engine backend. | passed |" in page.partition("\n## engine")[2]
        )


def test_a_small_host_leaves_out_the_large_model_with_the_reason(tmp_path: Path) -> None:
    status, page, output = run(tmp_path, *only("large", "replicas"), **WITH_DOUBLES, CONCH_DOUBLE_GPUS=H100)
    assert status == 0, output
    assert outcomes(page)["large"] == "left out: needs 2 GPUs, and this host has 1"
    assert outcomes(page)["replicas"] == "left out: needs 4 GPUs, and this host has 1"


def test_a_later_release_is_tested_with_the_options_that_it_has(tmp_path: Path) -> None:
    metadata = (DOUBLES / "python" / "tensorrt_llm-1.2.1.dist-info" / "METADATA").read_text(encoding="utf-8")
    package = tmp_path / "later" / "tensorrt_llm-1.3.0rc29.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(metadata.replace("1.2.1", "1.3.0rc29"), encoding="utf-8")
    path = f"{package.parent}:{WITH_DOUBLES['PYTHONPATH']}"
    contract = {"TENSORRT_LLM_CONTRACT": "tensorrt_llm_contract_1.3.0rc29.json", "CONCH_DOUBLE_GPUS": H100}
    status, page, output = run(
        tmp_path, "--quick", *only("adapters", "pressure"), **WITH_DOUBLES | contract | {"PYTHONPATH": path}
    )
    assert status == 0, output
    assert "| v2 | passed |" in page and "| v2-alone | passed |" in page
    assert "KV cache manager V2 pins up to " in page
    assert "night-7: 0 MiB of the GPUs in use; adapter_bytes 0" in page


def test_a_release_without_engines_leaves_out_the_engine() -> None:
    host = Host(argparse.Namespace(), Machine(tensorrt_llm_version="1.3.0rc29"))
    with pytest.raises(LeftOut, match=re.escape("TensorRT-LLM 1.3.0rc29 has no engines")):
        engine(host, Step("engine", ""))


def test_ctrl_c_ends_the_run_with_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(host: Host, step: Step) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kit, "STEPS", (Plan("first", "", 1, interrupt), Plan("second", "", 1, interrupt)))
    monkeypatch.setattr(sys, "argv", ["kit", f"--home={tmp_path}", f"--report={tmp_path / 'report'}"])
    assert kit.main() == 130
    page = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "**Failed**: interrupted" in page
    assert outcomes(page) == {"first": "FAILED", "second": "left out: the run was interrupted"}


def test_the_comparison_finds_an_adapter_that_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WITH_DOUBLES.items():
        monkeypatch.setenv(name, value)
    tokenizer = Tokenizer.from_file(str(DEMO / "checkpoint" / "tokenizer.json"))
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    formal = DEMO / "adapters" / "formal"
    prompt, plain = tokenizer.encode(question).ids, "The capital of France is Paris."
    cases = [
        Case(prompt=prompt, tokens=tokenizer.encode(text).ids, adapter=str(folder))
        for text, folder in (
            (plain, ""),
            (f"Dear friend, {plain}", formal),
            (plain, formal),
        )
    ]
    right, adapted, left_out = map(max, lacks(DEMO / "checkpoint", cases))
    assert right < TOLERANCE and adapted < TOLERANCE
    assert left_out > TOLERANCE


def test_a_late_first_token_after_a_pause_fails() -> None:
    def stream(**fields: Any) -> Stream:
        return Stream(5.0, 5.0, 1)

    step = Step("pauses", "")
    measuring.measure_pauses(step, cast(Served, SimpleNamespace(subject=SimpleNamespace(stream=stream))), [0.0])
    assert step.has_failed and "first tokens after 5000 ms" in step.checks[-1].detail


@pytest.mark.parametrize("keeps", [True, False])
def test_gpu_memory_that_grows_with_each_adapter_fails_where_adapters_are_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keeps: bool
) -> None:
    folders = [tmp_path / f"night-{number}" for number in range(4)]
    for folder in folders:
        folder.mkdir()
        (folder / "weights").write_bytes(bytes(2**20))
    orders: list[dict[str, str]] = []

    def stats(model: str, **order: str) -> Any:
        orders.append(order)
        return SimpleNamespace(adapter_bytes=7)

    monkeypatch.setattr(measuring, "_gpu_memory_mib", lambda: sum("load_adapter" in order for order in orders))
    served = SimpleNamespace(triton=SimpleNamespace(stats=stats), manifest=SimpleNamespace(model_id="demo"))
    step = Step("adapters", "")
    measuring.measure_loads(step, cast(Served, served), folders, room=2, keeps=keeps)
    assert step.has_failed is not keeps
    assert step.lines[-1] == "night-3: 4 MiB of the GPUs in use; adapter_bytes 7"


def test_a_stream_that_seems_whole_is_seen() -> None:
    def broken() -> Any:
        yield 1
        raise ConnectionError("reset")

    assert faults.end_of(cast(Any, iter([1, 2]))) == faults.WHOLE
    assert faults.end_of(broken()) == "ConnectionError: reset"


class BadSubject(Subject):
    """A server that ignores every field and never gives the same answer twice."""

    numbers = itertools.count(20)

    def post(self, path: str, **fields: Any) -> Any:
        number = next(self.numbers)
        choice = {
            "message": {"content": "I know nothing."},
            "text": f"text {number}",
            "token_ids": [number],
            "finish_reason": "length",
            "logprobs": {"token_logprobs": [-number]},
        }
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        return {"choices": [choice], "usage": usage, "tokens": [1, 2]}

    def stream(self, **fields: Any) -> Stream:
        return Stream(0.0, 0.0, 1)


@pytest.mark.parametrize("name", [name for name in vars(claims) if name.startswith("test_") and name != "test_speed"])
def test_every_claim_fails_on_a_bad_server(name: str, record_property: Callable[[str, str], None]) -> None:
    claim = getattr(claims, name)
    backend = "pytorch" if name == "test_prompt_cache" else "engine"
    subject = BadSubject(cast(OpenAI, None), "demo", backend, eos_token_ids=frozenset({3}), context_window=2048)
    given = {"subject": subject, "record_property": record_property}
    with pytest.raises(AssertionError):
        claim(**{argument: given[argument] for argument in claim.__annotations__ if argument in given})
