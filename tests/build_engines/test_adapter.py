"""Adapters for loading into a running server."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.__main__ import main
from build_engines.artifact import Manifest
from build_engines.build import build
from build_engines.commands.adapter import build_adapter
from build_engines.cpu_spec import CpuSpec
from build_engines.errors import BuildError
from model_repository.engine.adapters.root import AdapterRoot
from tests.build_engines.llama_cpp_logits import PROMPT, assert_same, llama_cpp_logits
from tests.build_engines.tiny_adapter import random_pairs, tensors_of, write_adapter
from tests.build_engines.tiny_checkpoint import random_weights, write_checkpoint
from tests.tensorrt_llm_artifact import DEMO, DEMO_CATALOG, write_artifact

TENSORS = tensors_of(random_pairs(random_weights(), ("q_proj", "k_proj")))


@pytest.fixture
def peft(tmp_path: Path) -> Path:
    """An adapter of the checkpoint, in PEFT's format."""
    return write_adapter(tmp_path / "peft", TENSORS)


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    """The checkpoint as an artifact."""
    return build(CpuSpec(model_id="tiny", checkpoint=checkpoint), tmp_path / "artifacts")


def root_of(folder: Path, artifact: Path, runtime: str = "llama_cpp") -> AdapterRoot:
    """Return the root of an engine that serves an artifact."""
    base = Manifest.load(artifact).base
    return AdapterRoot(folder=folder, ensemble="tiny", runtime=runtime, base=base, max_adapters=1, max_rank=8)


def test_the_command_writes_the_modules_for_the_engine(
    peft: Path, model: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "root" / "polite"
    for _ in range(2):  # the second one replaces it
        assert main(["adapter", str(peft), "--artifact", str(model), "--output", str(target)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"adapter     {target} (rank 4)"] * 2
    assert {path.name for path in target.iterdir()} == {"adapter.json", "adapter.gguf"}
    adapter = root_of(tmp_path / "root", model).find("polite", "polite")
    with_own = build(CpuSpec(model_id="tiny", checkpoint=checkpoint, adapters={"own": peft}), tmp_path / "artifacts")
    own = with_own / Manifest.load(with_own).adapters["own"]
    expected = llama_cpp_logits(with_own / "model.gguf", PROMPT, own)
    assert_same(llama_cpp_logits(model / "model.gguf", PROMPT, adapter.path), expected)


def test_it_fits_every_artifact_of_the_same_weights_and_no_other(
    peft: Path, model: Path, checkpoint: Path, tmp_path: Path
) -> None:
    build_adapter(peft, model, tmp_path / "root" / "polite")
    specs = [
        CpuSpec(model_id="tiny", checkpoint=checkpoint, precision="q8_0"),
        CpuSpec(model_id="small", checkpoint=checkpoint, adapters={"own": peft}),
        CpuSpec(model_id="tiny", checkpoint=write_checkpoint(tmp_path / "other", weights=random_weights(seed=7))),
    ]
    bases = [Manifest.load(build(spec, tmp_path / "artifacts")).base for spec in specs]
    assert bases[0] == bases[1] == Manifest.load(model).base != bases[2]


def test_a_folder_that_holds_something_else_is_not_replaced(peft: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    with pytest.raises(BuildError, match="is there already, and holds no adapter"):
        build_adapter(peft, model, tmp_path / "full")


def test_a_runtime_without_adapters_is_refused(peft: Path, checkpoint: Path, tmp_path: Path) -> None:
    model = build(CpuSpec(model_id="tiny", runtime="synthetic", checkpoint=checkpoint), tmp_path / "artifacts")
    with pytest.raises(BuildError, match="the runtime synthetic takes no adapters"):
        build_adapter(peft, model, tmp_path / "root" / "polite")


def test_for_tensorrt_llm_it_is_checked_against_the_catalog_and_stays_as_peft_wrote_it(tmp_path: Path) -> None:
    model = write_artifact(tmp_path / "model", "demo", "pytorch")
    target = tmp_path / "root" / "formal"
    manifest = build_adapter(DEMO / "adapters" / "formal", model, target, (DEMO_CATALOG,))
    assert {"attn_q", "mlp_gate"} <= set(manifest.modules)
    adapter = root_of(tmp_path / "root", model, "tensorrt_llm").find("formal", "formal")
    assert (adapter.path, adapter.rank, adapter.modules) == (target, 8, manifest.modules)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (target / name).read_bytes() == (DEMO / "adapters" / "formal" / name).read_bytes()
