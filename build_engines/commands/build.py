"""`build`: a model into an artifact, and the repository that serves it."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from build_engines.build import build
from build_engines.catalog import Catalog
from build_engines.checkpoint import read_chat_templates
from build_engines.commands import build_tensorrt_llm
from build_engines.commands.render import add_serve_options, serve_options_of, write
from build_engines.cpu_spec import CpuSpec
from build_engines.errors import BuildError, CatalogError
from build_engines.hub import HubReference, checkpoint_folder
from build_engines.llama_cpp.model_config import ARCHITECTURES
from build_engines.llama_cpp.storage import PRECISIONS
from build_engines.render import ServeOptions
from build_engines.serving import Serving
from build_engines.signals import ended_by_signals
from build_engines.tensorrt_llm.options import RUNTIME
from model_repository.engine.runtime import PROJECTOR, RUNTIMES
from model_repository.machine import installed_version
from model_repository.model_parameters import RequestDefaults
from model_repository.tool_formats import TOOL_FORMATS

DEMO = Path(str(resources.files("build_engines").joinpath("demo")))


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "build",
        help="convert a model to an artifact, and render its repository",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("model", metavar="MODEL", help="OWNER/NAME of the hub, a name of the catalog, or with a source any name")
    add("--checkpoint", metavar="DIR", help="folder in Hugging Face's layout, or OWNER/NAME@REVISION of the hub")
    add("--gguf", type=Path, metavar="FILE", help="a GGUF file, served without conversion")
    add("--tokenizer", type=Path, metavar="DIR", help="folder with tokenizer.json, for --gguf")
    add("--mmproj", type=Path, metavar="FILE", help="a GGUF file of llama.cpp, with which the model reads images")
    add("--runtime", choices=sorted(RUNTIMES), help="(llama_cpp; tensorrt_llm where it is installed)")
    add("--precision", metavar="NAME", help=_PRECISION_HELP)
    add("--context-window", type=int, metavar="N", help="tokens of prompt and completion (the model's maximum)")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the runtime; repeatable")
    add(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a LoRA adapter in PEFT's format, served under this name; repeatable",
    )
    add(
        "--tool-call-format",
        choices=sorted(TOOL_FORMATS),
        help="format of the model's tool calls (that of the catalog or of the chat template)",
    )
    add("--alias", action="append", default=[], metavar="NAME", help="a further name of the model; repeatable")
    add(
        "--default",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value for requests without this field, not the frontend's; repeatable; "
        f"one of {', '.join(RequestDefaults.__dataclass_fields__)}; null for max_tokens: the rest of the window",
    )
    add("--state-dir", type=Path, default=Path(".conch"), help="for artifacts/ and repository/ (%(default)s)")
    build_tensorrt_llm.add_to(command)
    add_serve_options(command)
    command.set_defaults(command=_build)


_DESCRIPTION = """\
Convert a model to an artifact, and render the repository that serves it.

`build demo` builds the demo model of this project. Without --checkpoint and --gguf, the model is downloaded from the
Hugging Face hub: OWNER/NAME or OWNER/NAME@REVISION, or a name of the catalog (see `list`). With --runtime tensorrt_llm,
MODEL must be in the catalog.

An existing artifact with the same inputs is not built again. An interrupted build continues after its last finished
step. A second build of the same model waits for the first."""
_EPILOG = """\
examples:
  build demo
  build Qwen/Qwen2.5-0.5B-Instruct --precision q8_0
  build my-model --checkpoint DIR --precision q8_0
  build llama3.1:70b --runtime tensorrt_llm --gpu h100 --precision fp8 --dry-run
  build llama3.1:8b --runtime tensorrt_llm --checkpoint meta-llama/Llama-3.1-8B-Instruct@main \\
        --tensorrt-llm-examples TensorRT-LLM"""
_PRECISION_HELP = (
    f"of the matrices. llama_cpp: {', '.join(sorted(PRECISIONS))} (f16; the demo model: f32); with f32, "
    "twice the size of f16, other traffic hardly ever changes the text of a seed. "
    "tensorrt_llm: bf16, f16 or fp8, as the catalog has them for the model"
)


def _build(options: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    is_for_gpu = installed_version(RUNTIME) and options.model != "demo" and options.gguf is None
    options.runtime = options.runtime or (RUNTIME if is_for_gpu else "llama_cpp")
    serve_options = serve_options_of(options)  # a mistake is reported before the build
    with ended_by_signals():
        artifact_dir = (
            _build_tensorrt_llm(options, serve_options) if options.runtime == RUNTIME else _build_on_cpu(options)
        )
        if artifact_dir is not None:
            print(f"artifact    {artifact_dir}")
            if "default" not in read_chat_templates(artifact_dir / "tokenizer"):
                rule = "chat requests are refused; put its chat_template.jinja beside tokenizer.json and build again"
                print(f"warning: {options.model} has no chat template: {rule}", file=sys.stderr)
            write([artifact_dir], options.state_dir / "repository", serve_options)


def _build_tensorrt_llm(options: argparse.Namespace, serve_options: ServeOptions) -> Path | None:
    build_options = build_tensorrt_llm.BuildOptions(
        options=options,
        runtime_options=_pairs("--option", options.option),
        adapters=_adapters(options),
        serving=_serving(options),
        serve_options=serve_options,
    )
    return build_tensorrt_llm.build_tensorrt_llm(build_options)


def _build_on_cpu(options: argparse.Namespace) -> Path:
    build_tensorrt_llm.check_unused(options)
    adapters, projector, precision = _adapters(options), options.mmproj, options.precision or "f16"
    model_id, checkpoint = options.model, None
    if options.checkpoint is not None:
        checkpoint, _ = checkpoint_folder(options.checkpoint)
    elif options.model == "demo" and options.gguf is None:
        checkpoint, precision = DEMO / "checkpoint", options.precision or "f32"
        if options.runtime == "llama_cpp":
            adapters, projector = _demo_adapters() | adapters, projector or DEMO / PROJECTOR
    elif options.gguf is None:
        model_id, checkpoint = _named_checkpoint(options.model)
    spec = CpuSpec(
        model_id=model_id,
        runtime=options.runtime,
        checkpoint=checkpoint,
        gguf=options.gguf,
        tokenizer=options.tokenizer,
        projector=projector,
        context_window=options.context_window,
        precision=precision,
        options=_pairs("--option", options.option),
        adapters=adapters,
        tool_call_format=options.tool_call_format,
        serving=_serving(options),
    )
    return build(spec, options.state_dir / "artifacts")


def _named_checkpoint(model: str) -> tuple[str, Path]:
    """Return the name for clients of a model of the hub or the catalog, and the folder of its checkpoint.

    Raises:
        BuildError: there is no such model, or only a GGUF file of it can be served.
    """
    try:
        entry = Catalog.load().find(model)
    except CatalogError:
        reference = HubReference.find(model)
        if reference is None:
            rule = "expected OWNER/NAME of the hub, --checkpoint DIR, or --gguf FILE with --tokenizer DIR"
            raise BuildError(f"{model}: {rule}") from None
        return reference.repository, reference.download()[0]
    if entry.architecture.class_name not in ARCHITECTURES:
        rule = f"of checkpoints, {' and '.join(ARCHITECTURES)} are converted"
        raise BuildError(f"{model}: expected --gguf FILE with --tokenizer DIR: {rule}")
    return model, HubReference(entry.model_id, "main").download(entry)[0]


def _serving(options: argparse.Namespace) -> Serving:
    return Serving.of(options.alias, _values(_pairs("--default", options.default)))


def _adapters(options: argparse.Namespace) -> dict[str, Path]:
    return {name: Path(folder) for name, folder in _pairs("--adapter", options.adapter, "NAME=DIR").items()}


def _demo_adapters() -> dict[str, Path]:
    """Return the folders of the demo model's own adapters by name."""
    configs = sorted(DEMO.glob("adapters/*/adapter_config.json"))
    return {f"demo-{config.parent.name}": config.parent for config in configs}


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
    """Read values as JSON. Other values are texts."""
    return {name: _value(text) for name, text in texts.items()}


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
