"""`build`: a model into an artifact, and the repository that serves it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from build_engines.build import BuildSpec, build
from build_engines.commands.render import add_serve_options, write
from build_engines.errors import BuildError
from build_engines.llama_cpp.gguf_file import PRECISIONS
from build_engines.serving import Serving
from model_repository.engine.runtime import RUNTIMES
from model_repository.model_parameters import RequestDefaults
from model_repository.tool_formats import TOOL_FORMATS

DEMO = Path(str(resources.files("build_engines").joinpath("demo")))


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "build",
        help="turn a model into an artifact, and render the repository that serves it",
        description="`build demo` takes the demo model of this project; any other name needs --checkpoint, "
        "or --gguf with --tokenizer.",
    )
    command.add_argument("model", metavar="MODEL", help="the model's id, as clients will name it")
    command.add_argument("--checkpoint", type=Path, metavar="DIR", help="folder in Hugging Face's layout")
    command.add_argument("--gguf", type=Path, metavar="FILE", help="a ready GGUF file, served as it is")
    command.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder with tokenizer.json, for --gguf")
    command.add_argument(
        "--runtime", choices=sorted(RUNTIMES), default="llama_cpp", help="what executes it (%(default)s)"
    )
    command.add_argument(
        "--precision",
        choices=sorted(PRECISIONS),
        help="of a checkpoint's matrices; f32 is twice the size, and keeps a seed's text the same beside any traffic "
        "(f16; the demo model: f32)",
    )
    command.add_argument("--context-window", type=int, metavar="N", help="at most the model's own, the default")
    command.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the runtime; repeatable"
    )
    command.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a LoRA adapter in PEFT's format, served under this name; repeatable",
    )
    command.add_argument(
        "--tool-call-format",
        choices=sorted(TOOL_FORMATS),
        help="how the model writes tool calls; without it, as the chat template says",
    )
    command.add_argument(
        "--alias", action="append", default=[], metavar="NAME", help="a further name of the model; repeatable"
    )
    command.add_argument(
        "--default",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what a request gets that leaves it out, in place of the frontend's own setting; repeatable; "
        f"one of {', '.join(RequestDefaults.__dataclass_fields__)}; null for max_tokens: all that the window leaves",
    )
    command.add_argument(
        "--state-dir", type=Path, default=Path(".conch"), help="holds artifacts/ and repository/ (%(default)s)"
    )
    add_serve_options(command)
    command.set_defaults(command=_build)


def _build(options: argparse.Namespace) -> None:
    checkpoint, adapters = options.checkpoint, _pairs("--adapter", options.adapter, "NAME=DIR")
    precision = options.precision or "f16"
    if options.model == "demo" and checkpoint is None and options.gguf is None:
        checkpoint, precision = DEMO / "checkpoint", options.precision or "f32"
        if options.runtime == "llama_cpp":
            adapters = _demo_adapters() | adapters
    spec = BuildSpec(
        model_id=options.model,
        runtime=options.runtime,
        checkpoint=checkpoint,
        gguf=options.gguf,
        tokenizer=options.tokenizer,
        context_window=options.context_window,
        precision=precision,
        options=_pairs("--option", options.option),
        adapters={name: Path(folder) for name, folder in adapters.items()},
        tool_call_format=options.tool_call_format,
        serving=Serving.of(options.alias, _values(_pairs("--default", options.default))),
    )
    artifact_dir = build(spec, options.state_dir / "artifacts")
    print(f"artifact    {artifact_dir}")
    write([artifact_dir], options.state_dir / "repository", options)


def _demo_adapters() -> dict[str, str]:
    """Return the folders of the demo model's own adapters by name."""
    configs = sorted(DEMO.glob("adapters/*/adapter_config.json"))
    return {f"demo-{config.parent.name}": str(config.parent) for config in configs}


def _pairs(flag: str, items: Sequence[str], form: str = "NAME=VALUE") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not name or not separator:
            raise BuildError(f"{flag} {item}: expected {form}")
        if name in pairs:
            raise BuildError(f"{flag} {name}: given twice")
        pairs[name] = value
    return pairs


def _values(texts: Mapping[str, str]) -> dict[str, object]:
    """Read values as JSON; a bare word is a text."""
    return {name: _value(text) for name, text in texts.items()}


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
