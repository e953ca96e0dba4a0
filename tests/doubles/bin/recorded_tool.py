"""What the doubles of TensorRT-LLM's command-line tools share. They are no TensorRT-LLM: nothing of it can run here.

A double takes exactly the flags that are recorded of its tool, reads real safetensors files, and writes files of the
recorded layout whose bytes depend on what it read. The standard library only.

CONCH_DOUBLE_FAULT=PROGRAM=FAULT makes one of them fail; the faults are in `Fault.strike`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONTRACT = Path(__file__).parents[2] / "data" / "tensorrt_llm_contract.json"

_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float}
_TOOL_VERSION = "1.2.1"


def read_arguments(program: str) -> argparse.Namespace:
    """Parse the command line by the recorded flags; what is uncertain is refused like what does not exist."""
    recorded = json.loads(CONTRACT.read_text(encoding="utf-8"))["cli"][program]
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False, description="A test double.")
    for flag, entry in recorded.items():
        if entry.get("uncertain"):
            continue
        words = (flag, *entry.get("aliases", ()))
        if entry["type"] == "flag":
            parser.add_argument(*words, action="store_true")
            continue
        parser.add_argument(
            *words,
            type=_TYPES.get(entry["type"], str),
            nargs="+" if entry["type"] == "list[str]" else None,
            choices=[choice for choice in entry["choices"] if choice is not None] if "choices" in entry else None,
            required=entry.get("required", False),
            # One default is recorded by its name, which argparse would read as a number.
            default=None if entry["type"] in _TYPES and isinstance(entry["default"], str) else entry["default"],
        )
    return parser.parse_args()


def convert(program: str, class_names: set[str], **names: str) -> None:
    """Be a converter: write config.json and rankN.safetensors, each with its share of the bytes of every tensor.

    A single rank has the checkpoint's own file, from which the double of the package can answer.

    Args:
        program: as it is recorded.
        class_names: the architectures that it converts.
        names: which of its options is `model_dir`, `output_dir`, `tp_size`; `pp_size` if it has one.
    """
    options, fault = vars(read_arguments(program)), Fault.of(program)
    model_dir, output_dir = Path(options[names["model_dir"]]), Path(options[names["output_dir"]])
    tp_size, pp_size = options[names["tp_size"]], options[names["pp_size"]] if "pp_size" in names else 1
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    (class_name,) = config["architectures"]
    if class_name not in class_names:
        sys.exit(f"ValueError: {class_name} is not supported by this script, which converts {sorted(class_names)}")
    tensors = dict(_tensors(model_dir))
    say(f"{len(tensors)} tensors of {class_name}")
    num_ranks = tp_size * pp_size
    output_dir.mkdir(parents=True, exist_ok=True)
    quantization = {
        "quant_algo": "FP8" if options.get("qformat") == "fp8" else None,
        "kv_cache_quant_algo": "FP8" if options.get("kv_cache_dtype") == "fp8" else None,
    }
    written = {"architecture": class_name, "dtype": options["dtype"], "quantization": quantization}
    written |= {"version": _TOOL_VERSION, "mapping": {"world_size": num_ranks, "tp_size": tp_size, "pp_size": pp_size}}
    (output_dir / "config.json").write_text(json.dumps(config | written), encoding="utf-8")
    for rank in range(num_ranks):
        fault.strike(rank, num_ranks)
        if num_ranks == 1 and (model_dir / "model.safetensors").is_file():
            shutil.copyfile(model_dir / "model.safetensors", output_dir / "rank0.safetensors")
            continue
        shares = {
            name: data[len(data) * rank // num_ranks : len(data) * (rank + 1) // num_ranks]
            for name, data in tensors.items()
        }
        _write_safetensors(output_dir / f"rank{rank}.safetensors", shares)
    say("done")


def write_engine(
    checkpoint_dir: Path, output_dir: Path, build_config: dict[str, Any], num_workers: int, fault: Fault
) -> None:
    """Write config.json and rankN.engine, each on a GPU; in a job of MPI, the ranks of this process's number."""
    pretrained = json.loads((checkpoint_dir / "config.json").read_text(encoding="utf-8"))
    num_ranks = pretrained["mapping"]["world_size"]
    output_dir.mkdir(parents=True, exist_ok=True)
    num_processes = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    process = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    if process == 0:
        config = {"pretrained_config": pretrained, "build_config": build_config, "version": _TOOL_VERSION}
        (output_dir / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for rank in range(process, num_ranks, num_processes):
        fault.strike(rank, num_ranks)
        weights = checkpoint_dir / f"rank{rank}.safetensors"
        list(_read_safetensors(weights))
        engine = weights.read_bytes()
        if num_ranks > 1:
            digest = hashlib.sha256(engine + json.dumps(build_config, sort_keys=True).encode()).hexdigest()
            engine = f"engine of a double {rank} {digest}".encode()
        (output_dir / f"rank{rank}.engine").write_bytes(b"" if fault.name == "empty" else engine)
        gpu = process if num_processes > 1 else rank % num_workers
        say(f"rank {rank} is built on GPU {gpu}")


def say(text: str) -> None:
    """Write a line, as the tools do."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _tensors(model_dir: Path) -> Iterator[tuple[str, bytes]]:
    index = model_dir / "model.safetensors.index.json"
    if not index.is_file():
        yield from _read_safetensors(model_dir / "model.safetensors")
        return
    for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
        yield from _read_safetensors(model_dir / name)


def _read_safetensors(path: Path) -> Iterator[tuple[str, bytes]]:
    content = path.read_bytes()
    try:
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
    except (struct.error, ValueError):
        sys.exit(f"safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge ({path})")
    header.pop("__metadata__", None)
    for name, tensor in header.items():
        start, end = tensor["data_offsets"]
        if 8 + length + end > len(content):
            sys.exit(f"safetensors_rust.SafetensorError: MetadataIncompleteBuffer ({path})")
        yield name, content[8 + length + start : 8 + length + end]


def _write_safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    header, offset = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


class Fault:
    """What goes wrong on purpose, in the middle of the ranks."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def of(cls, program: str) -> Fault:
        """Return this program's fault; the environment names one program's."""
        victim, _, name = os.environ.get("CONCH_DOUBLE_FAULT", "").partition("=")
        return cls(name if victim == Path(program).name else "")

    def strike(self, rank: int, num_ranks: int) -> None:
        """Do it before the last rank is written."""
        if rank != num_ranks - 1 or not self.name:
            return
        if self.name == "gate":
            self._wait_at_gate()
        elif self.name == "orphan":
            if os.fork() == 0:  # a worker, which outlives this process when it is killed
                os.setsid()
                self._wait_at_gate()
                os._exit(0)
            signal.pause()
        elif self.name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

    def _wait_at_gate(self) -> None:
        """Say that this point is reached, and wait until somebody lets us go on: two named pipes."""
        gate = Path(os.environ["CONCH_DOUBLE_GATE"])
        (gate / "reached").write_text(str(os.getpid()), encoding="ascii")
        (gate / "go").read_bytes()
