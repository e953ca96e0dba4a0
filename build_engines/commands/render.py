"""`render`: writes the repository that serves some artifacts."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.placement import AUTO
from build_engines.render import ServeOptions, render_artifacts, write_repository
from build_engines.rendered import rendered_again
from build_engines.serving import Loading
from build_engines.whole_store import offered
from model_repository.engine.tensorrt_llm.llm_options import read_llm_options
from model_repository.model_parameters import DEFAULT_KEEP_ALIVE_S, Load
from model_repository.quantities import DURATION_RULE
from model_repository.runtimes import RUNTIMES
from model_repository.system.model_memory import add_model_memory

_LOAD_HELP = "load the model as the server starts, or by its first request (the artifact's; start)"
_KEEP_ALIVE_HELP = (
    f"unload the model after this time without work: {DURATION_RULE} (the artifact's; never with --load start, "
    f"{DEFAULT_KEEP_ALIVE_S:g} seconds with --load demand)"
)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "render",
        help="write the repository that serves the given artifacts",
        usage="%(prog)s [ARTIFACT[:GPUS] ...] --repository DIR [options]",
        description="Write the Triton repository that serves artifacts, one model each. An existing repository is "
        "replaced atomically. Without ARTIFACT it is rendered again, with its own artifacts and settings, as after an "
        "upgrade.",
        epilog="example: conch render ~/.local/share/conch/artifacts/* --repository repository",
    )
    command.add_argument(
        "artifacts",
        nargs="*",
        metavar="ARTIFACT[:GPUS]",
        help="a folder from `build`; several models on GPUs need the numbers of theirs: ARTIFACT:0,1 ARTIFACT:2; named "
        "again with other numbers, a replica of its model",
    )
    command.add_argument(
        "--alias",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name of the model, with one artifact; repeatable",
    )
    command.add_argument("--name", metavar="NAME", help="the model's name, with one artifact (the artifact's)")
    store_help = "of this home's store, the newest artifact of each model, loaded by its first request"
    command.add_argument("--store", type=Path, metavar="HOME", help=store_help)
    command.add_argument("--repository", type=Path, required=True, metavar="DIR", help="the folder of the repository")
    add_model_memory(command, "memory that all loaded models may hold together")
    add_loading_options(command)
    add_serve_options(command)
    command.set_defaults(command=_render)


def add_serve_options(command: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options of ServeOptions."""
    for field in dataclasses.fields(ServeOptions):
        if field.metadata:
            flag = f"--{field.name.replace('_', '-')}"
            command.add_argument(flag, type=int, metavar="N", default=field.default, help=field.metadata["text"])
    layers_help = (
        "layers of the model that graphics cards compute: those that fit, all, or a number from the last layer on; the "
        "cores compute the others (%(default)s)"
    )
    command.add_argument("--gpu-layers", metavar="auto|all|N", default=AUTO, help=layers_help)
    command.add_argument(
        "--device",
        type=lambda text: tuple(text.split(",")),
        default=(),
        dest="devices",
        metavar="NAME[,NAME]",
        help="the cards that compute them, by llama.cpp's names, such as CUDA0 (all)",
    )
    command.add_argument(
        "--speculative",
        choices=sorted({name for runtime in RUNTIMES.values() for name in runtime.speculative}),
        help="guess the next tokens, to compute several in a step; ngram: by repetitions, with llama_cpp (no guesses)",
    )
    command.add_argument(
        "--llm-option",
        action="append",
        default=[],
        dest="llm_options",
        metavar="KEY=VALUE",
        help="a keyword of TensorRT-LLM's LLM, with JSON or a text as its value, such as enable_attention_dp=true; "
        "repeatable",
    )
    command.add_argument(
        "--adapter-root",
        type=Path,
        metavar="DIR",
        help="folder of the LoRA adapters that may be loaded at runtime (loading is off)",
    )


def add_loading_options(command: argparse.ArgumentParser) -> None:
    """Add the options of Loading."""
    command.add_argument("--load", choices=list(Load), help=_LOAD_HELP)
    command.add_argument("--keep-alive", metavar="DURATION", help=_KEEP_ALIVE_HELP)
    pin_help = "never unload the model to make room for another one"
    command.add_argument("--pin", action="store_const", const=True, help=pin_help)


def serve_options_of(options: argparse.Namespace) -> ServeOptions:
    """Read the options of `add_serve_options` and `add_loading_options`.

    Raises:
        BuildError: a value breaks its rule.
    """
    loading = Loading.of(options.load, options.keep_alive, options.pin)
    values = {**vars(options), "loading": loading, "presets": {}}
    values = {field.name: values[field.name] for field in dataclasses.fields(ServeOptions)}
    try:
        values["llm_options"] = read_llm_options(values["llm_options"])
    except ValueError as exc:
        raise BuildError(f"--llm-option {exc}") from exc
    return ServeOptions(**values)


def _render(options: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    serve_options = serve_options_of(options)
    if options.store is not None:
        if options.artifacts or options.alias or options.name is not None:
            raise BuildError(f"--store {options.store}: not together with ARTIFACT, --alias or --name")
        served = offered(options.store, serve_options)
        write(render_artifacts(served, model_memory=options.model_memory), options.repository)
        return
    if not options.artifacts:
        if serve_options != ServeOptions() or options.alias or options.name is not None:
            raise BuildError("ARTIFACT: required with options; without both, the repository is rendered again")
        write(rendered_again(options.repository, options.model_memory), options.repository)
        return
    named: dict[Path, list[tuple[int, ...]]] = {}
    for folder, numbers in map(_with_gpus, options.artifacts):
        named.setdefault(folder, []).append(numbers)
    for flag, given in (("--alias", options.alias), ("--name", [options.name])):
        if any(given) and len(named) > 1:
            raise BuildError(f"{flag} {given[0]}: goes with one artifact")
    served = dict.fromkeys(named, serve_options)
    gpus = {folder: replicas for folder, replicas in named.items() if replicas != [()]}
    for folder, replicas in gpus.items():
        if not all(replicas):
            raise BuildError(f"{folder}: named twice: replicas need their GPUs, as ARTIFACT:0,1 ARTIFACT:2,3")
        if serve_options.replicas > 1:
            rule = "not with numbers of GPUs: name it once for each replica, or without numbers"
            raise BuildError(f"--replicas {serve_options.replicas}: {folder}: {rule}")
        served[folder] = dataclasses.replace(serve_options, replicas=len(replicas))
    files = render_artifacts(served, gpus, options.alias, options.name, options.model_memory)
    write(files, options.repository)


def _with_gpus(text: str) -> tuple[Path, tuple[int, ...]]:
    """Split ARTIFACT:0,1 into the folder and the numbers."""
    found = re.fullmatch(r"(?P<folder>.+?)(:(?P<gpus>\d+(,\d+)*))?", text, re.DOTALL)
    if found is None:
        raise BuildError("an empty name of an artifact")
    return Path(found["folder"]), tuple(map(int, re.findall(r"\d+", found["gpus"] or "")))


def write(files: Mapping[str, str], repository: Path) -> None:
    """Replace the repository, and print its place."""
    write_repository(files, repository)
    print(f"repository  {repository}")
