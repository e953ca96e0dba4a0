"""`render`: the repository that serves some artifacts."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from build_engines.render import DEFAULT_MAX_SEQUENCES, ServeOptions, render_artifacts, write_repository


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "render",
        help="render the repository that serves the given artifacts",
        description="Write the Triton repository that serves artifacts, one model for each. A repository that is there "
        "already is replaced in one piece.",
    )
    command.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT", help="a folder that `build` made")
    command.add_argument("--repository", type=Path, required=True, metavar="DIR", help="where the repository goes")
    add_serve_options(command)
    command.set_defaults(command=_render)


def add_serve_options(command: argparse.ArgumentParser) -> None:
    """Add the options that say how artifacts are served."""
    defaults = ServeOptions()
    most = f"what an engine was built for, otherwise {DEFAULT_MAX_SEQUENCES}"
    for name, text in (
        ("max_sequences", f"sequences decoded in one step ({most})"),
        ("max_waiting", "requests that may queue for them (%(default)s)"),
        ("num_threads", "threads of the engine; 0: one for each physical core (%(default)s)"),
        (
            "stream_interval_ms",
            "milliseconds for which a stream's tokens may gather under load, 0 to 1000 (%(default)s)",
        ),
        (
            "tokenizer_instances",
            "processes that tokenize, each with the tokenizer in memory: one is enough for some thousand requests a "
            "second, and long prompts are left to threads of it (%(default)s)",
        ),
        ("max_adapters", "LoRA adapters that may be loaded while the model runs (%(default)s)"),
        ("max_adapter_rank", "of each of those (%(default)s)"),
    ):
        flag = "--" + name.replace("_", "-")
        command.add_argument(flag, type=int, metavar="N", default=getattr(defaults, name), help=text)
    command.add_argument(
        "--adapter-root",
        type=Path,
        metavar="DIR",
        help="LoRA adapters below this folder may be loaded while the model runs; without it, none may",
    )


def serve_options_of(options: argparse.Namespace) -> ServeOptions:
    """Return what `add_serve_options` has added.

    Raises:
        BuildError: a value breaks its rule.
    """
    names = [field.name for field in dataclasses.fields(ServeOptions)]
    return ServeOptions(**{name: getattr(options, name) for name in names})


def _render(options: argparse.Namespace) -> None:
    write(options.artifacts, options.repository, serve_options_of(options))


def write(artifact_dirs: Sequence[Path], repository: Path, serve_options: ServeOptions) -> None:
    """Render the artifacts as the options say, and put the repository in its place."""
    write_repository(render_artifacts(artifact_dirs, serve_options), repository)
    print(f"repository  {repository}")
