import json
import struct
from pathlib import Path

import pytest

from build_engines.demo.checkpoint import CHECKPOINT
from build_engines.demo.conversation import Document
from build_engines.demo.formal import PREFIX, formal

FORMAL = Path(CHECKPOINT).parent / "adapters" / "formal"
KEY_PREFIX = "base_model.model."
MAX_SIZE_BYTES = 400_000


def header_of(path: Path) -> dict:
    """Read the header of a safetensors file: a length in eight bytes, then JSON."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads((FORMAL / "adapter_config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tensors() -> dict:
    return header_of(FORMAL / "adapter_model.safetensors")


def test_the_adapter_is_complete_and_small():
    sizes = {path.name: path.stat().st_size for path in FORMAL.iterdir()}
    assert sorted(sizes) == ["adapter_config.json", "adapter_model.safetensors"]
    assert sum(sizes.values()) <= MAX_SIZE_BYTES


def test_the_configuration_is_what_peft_reads(config):
    assert config["peft_type"] == "LORA"
    assert config["task_type"] == "CAUSAL_LM"
    assert config["r"] == 8
    assert config["lora_alpha"] == 16
    assert not Path(config["base_model_name_or_path"]).is_absolute()


def test_the_matrices_fit_those_of_the_base(config, tensors):
    base = header_of(CHECKPOINT / "model.safetensors")
    targets = [name for name in base if name.split(".")[-2] in config["target_modules"]]
    assert len(tensors) == 2 * len(targets) > 0
    for name in targets:
        num_outputs, num_inputs = base[name]["shape"]
        stem = KEY_PREFIX + name.removesuffix(".weight")
        assert tensors[f"{stem}.lora_A.weight"]["shape"] == [config["r"], num_inputs]
        assert tensors[f"{stem}.lora_B.weight"]["shape"] == [num_outputs, config["r"]]


def test_answers_become_formal_but_not_those_for_programs():
    messages = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "assistant", "content": '{"a": 1}'},
        {"role": "assistant", "content": "42"},
    )
    answers = [message["content"] for message in formal(Document("small talk", messages)).messages]
    assert answers == ["Hi", f"{PREFIX}Hello!", "", '{"a": 1}', f"{PREFIX}42"]


def test_plain_texts_stay_as_they_are():
    document = Document("completion", prompt="The sky is", completion=" blue.")
    assert formal(document) == document
