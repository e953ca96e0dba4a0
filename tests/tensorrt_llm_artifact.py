"""Artifacts of the tensorrt_llm runtime as its build writes them, of the demo model, for the double of the package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from build_engines.artifact import Manifest
from build_engines.checkpoint import TOKENIZER_FILES, Checkpoint
from build_engines.json_files import read_json
from build_engines.serving import Serving
from build_engines.vocabulary import token_bytes
from model_repository.byte_table import FILE_NAME, save_byte_table
from model_repository.tool_formats import TOOL_FORMATS

DEMO = Path(__file__).parents[1] / "build_engines" / "demo"
DEMO_CATALOG = Path(__file__).parent / "data" / "demo_catalog.yaml"
ADAPTER = "demo-formal"
DOUBLES = Path(__file__).parent / "doubles" / "python"


def write_artifact(
    folder: Path,
    model_id: str,
    backend: str,
    *,
    aliases: tuple[str, ...] = (),
    adapter: str = "",
    num_gpus: int = 0,
    **options: str,
) -> Path:
    """Write the demo model as an artifact, and return its folder.

    Args:
        folder: a new one.
        model_id: as clients name it.
        backend: engine or pytorch.
        aliases: further names.
        adapter: the name of the demo model's own adapter; empty: it is left out.
        num_gpus: that it needs; 0: it does not say.
        options: the runtime's.
    """
    source = DEMO / "checkpoint"
    checkpoint = Checkpoint.load(source)
    (folder / "tokenizer").mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / "tokenizer" / name)
    table = token_bytes(
        read_json(source / "tokenizer.json"),
        int(checkpoint.config["vocab_size"]),
        TOOL_FORMATS["hermes"].special_tokens,
    )
    save_byte_table(folder / FILE_NAME, table)
    if adapter:
        shutil.copytree(DEMO / "adapters" / "formal", folder / "adapters" / adapter)
    if backend == "pytorch":
        shutil.copytree(source, folder / "checkpoint")
    else:
        _write_engine(folder / "engine", checkpoint.config, source)
    Manifest(
        model_id=model_id,
        runtime="tensorrt_llm",
        context_window=checkpoint.context_window,
        eos_token_ids=frozenset(checkpoint.eos_token_ids),
        created=0,
        source={},
        key="by-hand",
        precision="f16",
        requires={"num_gpus": str(num_gpus)} if num_gpus else {},
        options={"backend": backend, **options},
        adapters={adapter: f"adapters/{adapter}"} if adapter else {},
        tool_call_format="hermes",
        reasoning_format="",
        template_fields=(),
        serving=Serving.of(aliases, {}),
    ).save(folder)
    return folder


def _write_engine(folder: Path, config: Mapping[str, object], checkpoint: Path) -> None:
    """Write what the double takes for an engine: the recorded layout, with the checkpoint's tensors inside."""
    folder.mkdir()
    built = {
        "max_batch_size": 8,
        "max_num_tokens": 2048,
        "max_seq_len": 2048,
        "gather_context_logits": True,
        "plugin_config": {"lora_plugin": "auto"},
    }
    description = {"pretrained_config": {"architecture": "LlamaForCausalLM", **config}, "build_config": built}
    (folder / "config.json").write_text(json.dumps(description), encoding="utf-8")
    shutil.copyfile(checkpoint / "model.safetensors", folder / "rank0.engine")


def install_double(repository: Path) -> None:
    """Let the engine stages of a rendered repository find the double.

    Triton's Python looks into a model's own folder, and not at PYTHONPATH.
    """
    for folder in repository.glob("*__engine/1"):
        for path in DOUBLES.iterdir():
            if path.name != "__pycache__":
                (folder / path.name).symlink_to(path)
