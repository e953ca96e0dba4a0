"""`quantize`: a GGUF file into a smaller one."""

from __future__ import annotations

import argparse
import logging
import re
import tempfile
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.llama_cpp.gguf_file import check_room
from build_engines.llama_cpp.gguf_header import gguf_parts, quantized_types, read_gguf_kind
from build_engines.llama_cpp.quantize import FILE_TYPES, least_bytes, quantize
from build_engines.progress import size_text
from build_engines.signals import ended_by_signals

_PRECISION_IN_NAME = re.compile(r"[-.](bf16|f16|f32)(-\d{5}-of-\d{5})?$", re.IGNORECASE)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "quantize",
        help="write a smaller GGUF file",
        description="Write a GGUF file in a smaller precision, with llama.cpp's quantizer. `build --precision` does it "
        "for a checkpoint. A model in several files becomes one file.",
        epilog="example: conch quantize model-f16.gguf q4_k_m",
    )
    command.add_argument("file", type=Path, metavar="FILE", help="a GGUF file in f32, f16 or bf16, or its first part")
    type_help = f"one of {', '.join(FILE_TYPES)}"
    command.add_argument("precision", type=str.lower, choices=[*FILE_TYPES], metavar="TYPE", help=type_help)
    command.add_argument("--output", type=Path, metavar="FILE", help="the new file (beside FILE, named after TYPE)")
    command.set_defaults(command=_quantize)


@ended_by_signals()
def _quantize(options: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    source, precision = options.file, options.precision
    name = _PRECISION_IN_NAME.sub("", source.stem)
    output: Path = options.output or source.with_name(f"{name}-{precision}.gguf")
    parts = gguf_parts(source)
    if found := quantized_types(source):
        rule = "llama.cpp quantizes files in f32, f16 or bf16, since a second rounding adds its error to the first"
        raise BuildError(f"{source}: has tensors in {', '.join(found)}: {rule}")
    if output.exists():
        raise BuildError(f"{output}: is there already: name another file with --output, or remove this one")
    architecture, before, num_weights = read_gguf_kind(source)
    check_room(output, least_bytes(num_weights, precision))
    size_bytes = sum(part.stat().st_size for part in parts)
    print(f"source      {source}: {size_text(size_bytes)}, {architecture} {before}", flush=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        aside = Path(folder, output.name)
        quantize(source, aside, precision)
        aside.rename(output)
    share = output.stat().st_size / size_bytes
    print(f"quantized   {output}: {size_text(output.stat().st_size)}, {100 * share:.0f} % of the source")
