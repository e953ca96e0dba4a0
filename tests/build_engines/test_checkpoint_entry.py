"""Checkpoints outside the catalog as its entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.catalog import Catalog
from build_engines.checkpoint_entry import checkpoint_in, entry_of_checkpoint, find_entry
from build_engines.errors import BuildError, CatalogError
from build_engines.gpus import GPUS
from build_engines.listed_classes import check_listed, classes_by_release, releases_with
from build_engines.model_entry import Precision
from build_engines.planner.plan import plan
from model_repository.engine.tensorrt_llm.options import Backend
from model_repository.engine.tensorrt_llm.releases import RELEASES
from tests.build_engines.stand_in_hub import Repository
from tests.build_engines.test_config_architecture import CONFIGS
from tests.build_engines.test_hub import Hub

CATALOG = Catalog.load()
FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def write(folder: Path, model_id: str = "Qwen/Qwen3-8B", modelopt: str = "", **changes: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[model_id] | changes))
    if modelopt:
        (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": modelopt}}))
    return folder


def test_a_folder_is_planned_like_the_model_of_the_catalog(tmp_path: Path) -> None:
    entry = find_entry(CATALOG, str(write(tmp_path / "my-model")), None)
    expected = CATALOG.find("qwen3:8b")
    assert (entry.model_id, entry.context_window, entry.backends) == ("my-model", 40960, (Backend.PYTORCH,))
    found, known = (plan(each, GPUS["h100"]) for each in (entry, expected))
    assert (found.memory, found.cache_terms, found.parallelism) == (known.memory, known.cache_terms, known.parallelism)


@pytest.mark.parametrize(
    ("model_id", "modelopt", "changes", "precision"),
    [
        ("Qwen/Qwen3-8B", "", {}, Precision.BF16),
        ("Qwen/Qwen3-8B", "", {"torch_dtype": "float16"}, Precision.F16),
        ("Qwen/Qwen3-8B", "FP8", {}, Precision.FP8),
        ("Qwen/Qwen3-8B", "NVFP4", {"quantization_config": {"quant_method": "modelopt"}}, Precision.NVFP4),
        ("Qwen/Qwen3-8B", "", {"quantization_config": FP8_BLOCKS}, Precision.FP8),
        ("openai/gpt-oss-20b", "", {"quantization_config": {"quant_method": "mxfp4"}}, Precision.MXFP4),
    ],
)
def test_the_precision_is_that_of_the_files(
    model_id: str, modelopt: str, changes: dict[str, Any], precision: Precision, tmp_path: Path
) -> None:
    entry = entry_of_checkpoint("me/model", write(tmp_path / "model", model_id, modelopt, **changes))
    assert entry.precisions == (precision,)
    assert bool(entry.gpu_architectures) is (changes.get("quantization_config") == FP8_BLOCKS)


@pytest.mark.parametrize(
    ("changes", "num_tokens"),
    [
        ({"sliding_window": None}, 32768),
        ({"sliding_window": 4096}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": False}, 32768),
        ({"sliding_window": 4096, "layer_types": ["sliding_attention", "full_attention"] * 18}, 32768),
    ],
)
def test_a_sliding_window_of_all_layers_ends_the_context_window(
    changes: dict[str, Any], num_tokens: int, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", max_position_embeddings=32768, **({"use_sliding_window": True} | changes))
    assert entry_of_checkpoint("me/model", folder).context_window == num_tokens


def test_code_of_the_checkpoint_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", auto_map={"AutoConfig": "configuration.Config"})
    [note] = entry_of_checkpoint("me/model", folder).notes
    assert "--option trust_remote_code=true" in note


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_model_of_the_hub_is_known_by_two_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, folder = Hub(tmp_path, monkeypatch), write(tmp_path / "model", modelopt="NVFP4")
    (folder / "model.safetensors").write_text("weights")
    with hub.serving(other=Repository(folder)):
        for name in ("org/other", "https://huggingface.co/org/other/tree/main"):
            entry = find_entry(CATALOG, name, None)
            assert (entry.model_id, entry.precisions) == ("org/other", (Precision.NVFP4,))
        assert find_entry(CATALOG, "any-name", "org/other@main").model_id == "any-name"
    assert not list(hub.cache.rglob("*.safetensors"))


def test_a_repository_without_a_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    refusal = pytest.raises(BuildError, match=r"^org/empty@main: no config\.json: TensorRT-LLM serves checkpoints in")
    with Hub(tmp_path, monkeypatch).serving(empty=Repository(tmp_path / "empty")), refusal:
        find_entry(CATALOG, "org/empty", None)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("qwen3:9b", r"did you mean .* \(a MODEL may also be OWNER/NAME of the hub, or a folder\)"),
        ("me/other:Q4_K_M", "me/other:Q4_K_M: :Q4_K_M names a GGUF file, which --runtime llama_cpp serves on a CPU"),
    ],
)
def test_a_name_that_is_no_checkpoint_is_refused(model: str, message: str) -> None:
    with pytest.raises((BuildError, CatalogError), match=message):
        find_entry(CATALOG, model, None)


def test_a_name_for_a_checkpoint_is_no_part_of_an_id(tmp_path: Path) -> None:
    assert find_entry(CATALOG, "coder", None).model_id == "Qwen/Qwen2.5-Coder-32B-Instruct"
    assert find_entry(CATALOG, "coder", str(write(tmp_path / "model"))).model_id == "coder"


def test_only_a_folder_and_a_revision_name_a_checkpoint(tmp_path: Path) -> None:
    names = (str(tmp_path), "me/other@v2", "me/other", "qwen3:8b")
    assert [checkpoint_in(name) for name in names] == [str(tmp_path), "me/other@v2", None, None]


# --- classes ----------------------------------------------------------------------------------------------------------


def test_the_releases_with_a_list_are_the_recorded_ones() -> None:
    assert list(classes_by_release()) == [release.version for release in RELEASES]


def test_the_catalog_names_no_class_that_is_listed_nowhere_and_has_no_engine() -> None:
    without = {entry.short_name for entry in CATALOG if not entry.backends and entry.pooling is None}
    assert without == {"LFM2.5-1.2B-Instruct", "SmolLM3-3B"}


@pytest.mark.parametrize(
    ("class_name", "version", "remedy"),
    [
        ("Gemma4ForConditionalGeneration", "1.2.1", "1.3.0rc29 has it, or `conch build me/model --runtime llama_cpp`"),
        ("MiniMaxM2ForCausalLM", "1.3.0rc29+cu13", "1.2.1 has it, or `conch build me/model --runtime llama_cpp`"),
        ("Lfm2ForCausalLM", "1.3.0rc29", "`conch build me/model --runtime llama_cpp` serves it on a CPU"),
        ("Lfm2ForCausalLM", None, "`conch build me/model --runtime llama_cpp` serves it on a CPU"),
        ("Lfm2ForCausalLM", "1.4.0rc1", "`conch build me/model --runtime llama_cpp` serves it on a CPU"),
    ],
)
def test_a_class_that_a_release_lacks_is_refused_with_a_remedy(
    class_name: str, version: str | None, remedy: str
) -> None:
    release = (version or "1.2.1 and 1.3.0rc29").partition("+")[0]
    with pytest.raises(BuildError) as caught:
        check_listed("me/model", class_name, version)
    said = f"me/model: the PyTorch backend of TensorRT-LLM {release} lists no {class_name}: {remedy}"
    assert str(caught.value).startswith(said)


def test_a_release_without_a_list_may_have_any_listed_class() -> None:
    check_listed("me/model", "Gemma4ForConditionalGeneration", "1.4.0rc1")
    check_listed("me/model", "Gemma4ForConditionalGeneration")
    assert releases_with("Gemma4ForConditionalGeneration") == ("1.3.0rc29",)
