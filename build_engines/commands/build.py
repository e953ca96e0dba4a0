"""`build`: models into artifacts, and the repository that serves them."""

from __future__ import annotations

import argparse
import json
import logging
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NoReturn

from build_engines.artifact import Manifest
from build_engines.catalog import read_sections
from build_engines.checkpoint import read_chat_templates
from build_engines.commands import build_tensorrt_llm
from build_engines.commands.builder import Builder
from build_engines.commands.render import add_loading_options, add_serve_options, serve_options_of, write
from build_engines.errors import BuildError, CatalogError, NotStored
from build_engines.hub import HubReference
from build_engines.llama_cpp.quantize import QUANTIZED
from build_engines.llama_cpp.storage import PRECISIONS
from build_engines.model_source import DEMO_MODELS
from build_engines.presets import models_named, presets_in, read_presets
from build_engines.render import ServeOptions, render_artifacts
from build_engines.serving import Serving, check_names_differ, names_of
from build_engines.signals import ended_by_signals
from build_engines.store import find, link, newest_complete
from build_engines.text_files import broken_template, unknown_marks
from model_repository.model_facts import Task
from model_repository.model_parameters import RequestDefaults
from model_repository.runtimes import DEFAULT_RUNTIME, RUNTIMES
from model_repository.system.command_parser import actions_by_flag, did_you_mean, is_repeatable, json_or_text
from model_repository.system.home import add_home
from model_repository.system.machine import installed_version
from model_repository.system.model_memory import add_model_memory
from model_repository.tool_formats import TOOL_FORMATS


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "build",
        help="convert models to artifacts, and render their repository",
        usage="%(prog)s MODEL [MODEL ...] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("models", nargs="+", metavar="MODEL", help=MODELS_HELP)
    _add_options(command)
    add_home(command, "for artifacts/ and repository/")
    repository_help = "for the repository that serves the models (repository/ in the home)"
    command.add_argument("--repository", type=Path, metavar="DIR", help=repository_help)
    add_model_memory(command, "memory that all loaded models may hold together")
    ready_help = (
        "on GPUs compile nothing if possible, as `serve` does: take an artifact of the store, else the PyTorch "
        "backend, with a ready checkpoint of the catalog"
    )
    command.add_argument("--ready", action="store_true", help=ready_help)
    kept_help = (
        "take the newest complete artifact of this home, whatever has become of its sources, and build only if there "
        "is none of this version's format. Repeatable: the first home gets a link to an artifact of another home, or "
        "to the new one"
    )
    command.add_argument("--kept", type=Path, action="append", default=[], metavar="DIR", help=kept_help)
    link_help = "make FILE a link to the artifact, for a later `render`, and render no repository"
    command.add_argument("--link", type=Path, metavar="FILE", help=link_help)
    command.set_defaults(command=_build)


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add the options that a model may also have in a file of models."""
    add_artifact_options(command)
    add_serve_options(command.add_argument_group("of the repository, as for `render`"))


def add_artifact_options(command: argparse.ArgumentParser) -> None:
    """Add the options of an artifact."""
    add = command.add_argument
    add("--checkpoint", metavar="DIR", help="folder in Hugging Face's layout, or OWNER/NAME@REVISION of the hub")
    add("--gguf", metavar="FILE", help="a GGUF file, served without conversion, or OWNER/NAME:VARIANT of the hub")
    add("--tokenizer", type=Path, metavar="DIR", help="folder with tokenizer.json, for --gguf (out of the GGUF file)")
    add("--mmproj", type=Path, metavar="FILE", help="a GGUF file of llama.cpp, with which the model reads images")
    add("--runtime", choices=sorted(RUNTIMES), help="(llama_cpp; tensorrt_llm where it is installed)")
    add("--precision", metavar="NAME", help=_PRECISION_HELP)
    window_help = "tokens of prompt and completion (the model's maximum, or what the memory holds)"
    add("--context-window", type=int, metavar="N", help=window_help)
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
        help="the value for requests without this field, in place of the frontend's or the model author's; repeatable; "
        f"one of {', '.join(RequestDefaults.__dataclass_fields__)}; null for max_tokens: the rest of the window; "
        "sampling=openai: OpenAI's values, in place of the author's",
    )
    add_loading_options(command)
    build_tensorrt_llm.add_to(command)


MODELS_HELP = "see above; with --checkpoint or --gguf, any name for clients"
MODELS = """\
A MODEL is one of these:

  demo, demo-embedder     the demo models of this project; the second one embeds
  OWNER/NAME[@REVISION]   a model of the Hugging Face hub: a checkpoint, or a repository of GGUF files
  OWNER/NAME:VARIANT      its GGUF file of this precision or name, such as Q4_K_M; else its checkpoint, quantized
  llama3.1:8b             a name of the catalog (see `list`), from the hub
  FOLDER or FILE.gguf     a checkpoint, or a GGUF file
  a name of `list`        a model of the store, also if its file or folder is gone, or the model of a preset
  FILE.yaml               several models with options (docs/models.md)
"""
_DESCRIPTION = f"""\
Convert models to artifacts, and render the repository that serves them. {MODELS}
An existing artifact with the same inputs is not built again. An interrupted build continues after its last finished
step. A second build of the same model waits for the first."""
_EPILOG = """\
examples:
  conch build demo
  conch build Qwen/Qwen2.5-0.5B-Instruct --precision q8_0
  conch build my-model --checkpoint DIR --precision q4_k_m
  conch build llama3.1:70b --runtime tensorrt_llm --gpu h100 --precision fp8 --dry-run
  conch build llama3.1:8b --runtime tensorrt_llm --checkpoint meta-llama/Llama-3.1-8B-Instruct@main \\
        --tensorrt-llm-examples TensorRT-LLM"""
_PRECISION_HELP = (
    f"of the matrices. llama_cpp: {', '.join((*PRECISIONS, *QUANTIZED))} (f16; the demo models: f32); with f32, "
    "twice the size of f16, other traffic hardly ever changes the text of a seed; "
    "of a GGUF file f16 or f32, for its KV cache. "
    "tensorrt_llm: bf16, f16, fp8 and others, as `list` shows them; of another model its checkpoint's"
)


@ended_by_signals()
def _build(options: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    _check_one_model(options, ("kept", "link"))
    if (kept := newest_complete(options.kept)) is not None:
        print(f"artifact    {kept}, which is kept")
        served = {kept: serve_options_of(options)}
    else:
        served = built(options)
    for artifact_dir in served:
        if options.kept and not (place := options.kept[0] / "artifacts" / artifact_dir.name).exists():
            link(place, artifact_dir)
        if options.link is not None:
            link(options.link, artifact_dir)
    if served and options.link is None:
        files = render_artifacts(served, model_memory=options.model_memory)
        write(files, options.repository or options.home / "repository")


def built(options: argparse.Namespace) -> dict[Path, ServeOptions]:
    """Build the artifact of each model, unless it is there, and return it with the settings of its repository.

    Raises:
        BuildError: one line that names the input and the rule.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    presets = read_presets(options.home)
    options.models = models_named(presets, options.models)
    builders = list(_each_builder(options))  # wrong options come before builds
    on_gpus = [each.options for each in builders if RUNTIMES[each.options.runtime].needs_gpus]
    building = [each for each in on_gpus if not each.dry_run]
    if len(building) > 1:
        rule = (
            "builds one MODEL at a time; `conch render ARTIFACT:0 ARTIFACT:1 --repository DIR` then gives each its GPUs"
        )
        models = " and ".join(each.model for each in building)
        raise BuildError(f"{models}: the runtime {building[0].runtime} {rule}")
    names = (
        names_of(each.options.model, each.serving.aliases, each.adapters, each.serve_options.presets)
        for each in builders
    )
    check_names_differ(chain.from_iterable(names))
    in_file = {name for each in builders for name in each.serve_options.presets}
    served: dict[Path, ServeOptions] = {}
    for each in builders:
        artifact_dir = _artifact_of(each)
        if artifact_dir is None:
            continue
        print(f"artifact    {artifact_dir}")
        manifest = Manifest.load(artifact_dir)
        of_home = {name: preset for name, preset in presets.get(manifest.model_id, {}).items() if name not in in_file}
        own = {**of_home, **each.serve_options.presets}
        served[artifact_dir] = replace(each.serve_options, presets=own)
        if manifest.task is not Task.GENERATE:  # it has no chats
            continue
        if fault := fault_of_templates(artifact_dir / "tokenizer"):
            place = "beside tokenizer.json (for a GGUF file: in the folder of --tokenizer)"
            rule = f"chat requests are refused; put chat_template.jinja {place} and build again"
            print(f"warning: {each.options.model} has {fault}: {rule}", file=sys.stderr)
            continue
        for kind, marks in unknown_marks(artifact_dir / "tokenizer").items():
            if kind == "thinking":
                rule = "thinking is part of the answer"
            elif each.options.tool_call_format is None:
                rule = "tools are described in words (plain); --tool-call-format names another format"
            else:
                continue
            shown = f", {marks}" if marks else ""
            print(f"warning: {each.options.model} has an unknown format of {kind}{shown}: {rule}", file=sys.stderr)
    return served


def fault_of_templates(folder: Path) -> str | None:
    """Return why a tokenizer's folder has no usable chat template; None: it has one."""
    if "default" not in read_chat_templates(folder):
        return "no chat template"
    fault = broken_template(folder)
    return f"a broken chat template ({fault})" if fault else None


def _each_builder(options: argparse.Namespace) -> Iterator[Builder]:
    _check_one_model(options, ("checkpoint", "gguf", "tokenizer", "mmproj", "adapter", "alias"))
    for model in options.models:
        if _is_file_of_models(model):
            yield from _of_file(options, Path(model))
        else:
            yield _builder(argparse.Namespace(**vars(options) | {"model": model}))


def _is_file_of_models(model: str) -> bool:
    return Path(model).suffix in (".yaml", ".yml")


def _check_one_model(options: argparse.Namespace, names: Iterable[str]) -> None:
    """Check that options of one model are given with one.

    Raises:
        BuildError: names the option.
    """
    for name in names:
        if not getattr(options, name):
            continue
        if files := [model for model in options.models if _is_file_of_models(model)]:
            raise BuildError(f"--{name}: goes with one MODEL: write it into {files[0]}")
        if len(options.models) > 1:
            raise BuildError(f"--{name}: goes with one MODEL, not {len(options.models)}")


def _of_file(options: argparse.Namespace, path: Path) -> Iterator[Builder]:
    parser = _EntryParser(add_help=False, allow_abbrev=False)
    _add_options(parser)
    actions = actions_by_flag(parser)
    sections = read_sections(path, ("models", "presets"))
    models = sections["models"]
    if not models:
        raise BuildError(f"{path}: models: expected at least one")
    try:
        presets = presets_in(sections.get("presets", {}), models)
    except BuildError as exc:
        raise BuildError(f"{path}: {exc}") from exc
    for model, fields in models.items():
        try:
            if not isinstance(model, str) or not isinstance(fields, dict | None):
                raise BuildError("expected a text as the name, and an object of options of `build`")
            words: list[str] = []
            for key, value in (fields or {}).items():
                if f"--{key}" not in actions:
                    near = did_you_mean(str(key), [flag.removeprefix("--") for flag in actions])
                    raise BuildError(f"{key}: `build` has no such option{near}")
                action = actions[f"--{key}"]
                words += [_located(action, word, path.parent) for word in _words(action, value)]
            is_path = model not in DEMO_MODELS and not {"checkpoint", "gguf"} & (fields or {}).keys()
            named = _existing(model, path.parent) if is_path else model
            given = argparse.Namespace(**vars(options) | {"model": named})
            builder = _builder(parser.parse_args(words, given))
        except BuildError as exc:
            raise BuildError(f"{path}: models.{model}: {exc}") from exc
        yield replace(builder, serve_options=replace(builder.serve_options, presets=presets.get(model, {})))


class _EntryParser(argparse.ArgumentParser):
    """Reads the options of a model in a file."""

    def error(self, message: str) -> NoReturn:
        raise BuildError(message)


def _words(action: argparse.Action, value: object) -> list[str]:
    """Return an option of a file in the form of the command line.

    Raises:
        BuildError: a value of another kind.
    """
    flag, is_switch, is_list = action.option_strings[0], action.nargs == 0, is_repeatable(action)
    match value:
        case None:
            return []
        case bool() if is_switch:
            return [flag] if value else []
        case list() if is_list and all(map(_is_text, value)):
            return [f"{flag}={each}" for each in value]
        case dict() if is_list and all(_is_text(each) or isinstance(each, bool | None) for each in value.values()):
            items = value.items()
            return [f"{flag}={name}={each if isinstance(each, str) else json.dumps(each)}" for name, each in items]
        case _ if not is_switch and _is_text(value):
            return [f"{flag}={value}"]
    expected = "a list of texts, or an object" if is_list else "a text or a number"
    raise BuildError(f"{flag.removeprefix('--')}: {value}: expected {'true or false' if is_switch else expected}")


def _located(action: argparse.Action, word: str, folder: Path) -> str:
    """Return --OPTION=VALUE with a path in it relative to a folder, in place of the current one."""
    flag, _, value = word.partition("=")
    name, equals, path = value.partition("=") if action.dest == "adapter" else ("", "", value)
    if equals or action.type is Path:
        return f"{flag}={name}{equals}{folder / os.path.expanduser(path)}"
    if action.dest in ("checkpoint", "gguf", "calibration_dataset"):  # may also be names of the hub
        return f"{flag}={_existing(value, folder)}"
    return word


def _existing(text: str, folder: Path) -> str:
    """Return the path of a file or folder below `folder` if the text names one, else the text."""
    path = folder / os.path.expanduser(text)
    return str(path) if path.exists() else text


def _is_text(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _builder(options: argparse.Namespace) -> Builder:
    """Set the runtime of a model, and return its builder, which has checked the options that need no file."""
    if "" in (options.model, options.checkpoint, options.gguf):
        raise BuildError("an empty text as MODEL, --checkpoint or --gguf")
    options.runtime = options.runtime or _default_runtime(options)
    serve_options = serve_options_of(options)
    serve_options.check_runtime(options.runtime)
    adapters = _pairs("--adapter", options.adapter, "NAME=DIR")
    defaults = {name: json_or_text(text) for name, text in _pairs("--default", options.default).items()}
    builder: Builder = pkgutil.resolve_name(RUNTIMES[options.runtime].builder)(
        options=options,
        runtime_options=_pairs("--option", options.option),
        adapters={name: Path(folder) for name, folder in adapters.items()},
        serving=Serving.of(options.alias, defaults, serve_options.loading),
        serve_options=serve_options,
    )
    return builder


def _default_runtime(options: argparse.Namespace) -> str:
    reference = HubReference.find(options.model)
    has_variant = reference is not None and reference.variant is not None and options.checkpoint is None
    is_gguf = options.gguf is not None or Path(options.model).suffix.lower() == ".gguf"
    is_for_cpu = options.model in DEMO_MODELS or is_gguf or has_variant
    on_gpus = (name for name, entry in RUNTIMES.items() if entry.needs_gpus and installed_version(entry.library))
    return DEFAULT_RUNTIME if is_for_cpu else next(on_gpus, DEFAULT_RUNTIME)


def _artifact_of(builder: Builder) -> Path | None:
    """Build a model, or find it in the store if only that knows its name; None: see `Builder`."""
    options = builder.options
    try:
        return builder.build()
    except CatalogError:
        is_searched = options.ready or not RUNTIMES[options.runtime].needs_gpus
        if not is_searched or (artifact_dir := _stored(builder)) is None:
            raise
        return artifact_dir


def _stored(builder: Builder) -> Path | None:
    """Return the artifact of a model that only the store knows: it was built of a file, or under a chosen name.

    Raises:
        BuildError: there are several, or an option asks for another artifact.
    """
    options = builder.options
    try:
        found = find(options.home, options.model)
    except NotStored:
        return None
    artifacts = [each for each in found if each.manifest is not None] or found  # others are of another version
    for name in ("context_window", "precision", "tokenizer", "mmproj", "adapter", "tool_call_format", "option"):
        if getattr(options, name):
            flag = f"--{name.replace('_', '-')}"
            raise BuildError(f"{flag}: {options.model} is in the store without its source: name its file or folder")
    if len(artifacts) > 1:
        names = ", ".join(each.folder.name for each in artifacts)
        raise BuildError(f"{options.model}: there are several artifacts: name one of {names}")
    builder.name_stored(artifacts[0].folder, builder.serving)
    return artifacts[0].folder


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
