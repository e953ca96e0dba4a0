"""The projector of a SmolVLM checkpoint computes the same as Hugging Face's transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cyllama.llama import llama_cpp as llama

from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.gguf_header import check_projector
from build_engines.llama_cpp.projector import write_projector
from tests.build_engines.llama_cpp.reference import ImageReference, digest_of
from tests.build_engines.llama_cpp_logits import Floats
from tests.build_engines.tiny_smolvlm import NUM_TILE_TOKENS, TEXT, VISION, pixels, vision_weights, write_smolvlm

REFERENCE = ImageReference.load()
# How far a feature may be off, in standard deviations of the features. Measured: 5.6e-3 and 5.8e-3, of which 5e-3 are
# the patches and GELU, which llama.cpp computes in F16 whatever the file has: with transformers doing so too, 2.3e-4.
BOUNDS = {"f32": 0.01, "f16": 0.01}


def features(folder: Path, precision: str) -> Floats:
    """Return what llama.cpp computes from a tile, [num_tile_tokens, hidden_size]."""
    checkpoint = Checkpoint.load(folder)
    write_gguf(checkpoint, folder / "model.gguf", precision)
    write_projector(checkpoint, folder / "mmproj.gguf", precision)
    llama.disable_logging()
    llama.ggml_backend_load_all()
    model = llama.LlamaModel(str(folder / "model.gguf"), llama.LlamaModelParams())
    projector = llama.MtmdContext(str(folder / "mmproj.gguf"), model, llama.MtmdContextParams())
    bitmap = llama.MtmdBitmap.create_image(32, 32, pixels(REFERENCE.picture).tobytes())
    chunks = projector.tokenize(projector.marker, [bitmap], False, False)  # they own each chunk
    projector.encode_chunk(chunks[1])  # behind the tokens that begin a tile
    return np.array(projector.get_output_embeddings(NUM_TILE_TOKENS, TEXT["hidden_size"]))


@pytest.mark.parametrize("precision", BOUNDS)
def test_a_converted_projector_computes_the_same(precision: str, tmp_path: Path) -> None:
    assert digest_of(vision_weights()) == REFERENCE.weights_sha256, "other random numbers: make the fixture anew"
    expected = np.array(REFERENCE.features)
    found = features(write_smolvlm(tmp_path), precision)
    assert np.abs(found - expected).max() < BOUNDS[precision] * expected.std()
    check_projector(tmp_path / "mmproj.gguf")
    with pytest.raises(BuildError, match=r"model\.gguf: not a projector of images"):
        check_projector(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"architectures": ["LlavaForConditionalGeneration"]},
            "of models with images Idefics3ForConditionalGeneration",
        ),
        (
            {"vision_config": VISION | {"hidden_act": "gelu"}},
            r"vision_config\.hidden_act='gelu': not 'gelu_pytorch_tanh'",
        ),
        ({"vision_config": VISION | {"patch_size": 0}}, "patch_size=0: expected a whole number from 1"),
        ({"scale_factor": 2**31}, "scale_factor=2147483648: expected a whole number from 1"),
        ({"scale_factor": None}, "scale_factor=None: expected a whole number from 1"),
        ({"vision_config": VISION | {"num_hidden_layers": 4}}, r"tensor model\.\S+\.layers\.3\.\S+: missing"),
    ],
)
def test_what_llama_cpp_does_not_compute_is_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=message):
        write_projector(Checkpoint.load(write_smolvlm(tmp_path, **config)), tmp_path / "mmproj.gguf", "f16")


def test_fields_that_transformers_leaves_out_have_its_defaults(tmp_path: Path) -> None:
    write_smolvlm(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"] = {
        "architectures": ["VLlama3ForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49280,
        "max_position_embeddings": 8192,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = Checkpoint.load(tmp_path).config
    assert [found[name] for name in ("hidden_size", "num_hidden_layers", "vocab_size")] == [4096, 32, 49280]
    assert found["architectures"] == ["LlamaForCausalLM"]
