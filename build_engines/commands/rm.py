"""`rm`: removes models from the store."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.hub import cached_files
from build_engines.lock import lock_path, locked_if_free
from build_engines.presets import changed_presets, model_of, read_presets
from build_engines.progress import size_text
from build_engines.render import remove_artifact
from build_engines.store import Stored, find
from model_repository.system.home import add_home


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "rm",
        help="remove models or presets from the store",
        description="Remove the artifacts of models, or presets. An artifact that a server serves is refused.",
        epilog="example: conch rm Qwen/Qwen2.5-0.5B-Instruct --downloads",
    )
    models_help = "name of a model, with all its artifacts, of one artifact, or of a preset (see `list`)"
    command.add_argument("models", nargs="+", metavar="MODEL", help=models_help)
    command.add_argument("--downloads", action="store_true", help="remove the model's files of the hub's cache too")
    add_home(command, "with artifacts/")
    command.set_defaults(command=_rm)


def _rm(options: argparse.Namespace) -> None:
    presets = read_presets(options.home)
    models = [name for name in options.models if model_of(presets, name) is None]
    artifacts = {each.folder: each for name in models for each in find(options.home, name)}.values()
    for artifact in artifacts:
        if artifact.server is not None:
            rule = f"{artifact.server.url} serves it; `conch stop {artifact.server.port}` stops that server"
            raise BuildError(f"{artifact.model_id}: {rule}")
    for name in dict.fromkeys(options.models):
        if (model_id := model_of(presets, name)) is not None:
            with changed_presets(options.home) as changed:
                changed.get(model_id, {}).pop(name, None)
            print(f"removed     preset {name} of {model_id}")
    for artifact in artifacts:
        print(f"removed     {artifact.folder}: {size_text(_remove(artifact))}")
        remove_artifact(artifact.folder, options.home / "repository")
        downloads = cached_files(artifact.manifest.source.values()) if artifact.manifest else []
        for folder, paths in groupby(downloads, lambda path: path.parents[1]):
            _report_downloads(folder, list(paths), is_removed=options.downloads)


def _report_downloads(folder: Path, paths: Sequence[Path], *, is_removed: bool) -> None:
    size = size_text(sum(path.stat().st_size for path in paths if path.exists()))
    if not is_removed:
        print(f"kept        {folder}: {size} of downloads, which --downloads removes too")
        return
    for path in paths:
        path.resolve().unlink(missing_ok=True)  # in the store that all repositories of the cache share
        path.unlink(missing_ok=True)  # the cache's links to it stay, and a new download replaces them
    print(f"removed     {folder}: {size} of downloads")


def _remove(artifact: Stored) -> int:
    """Remove the folder of an artifact, and return how many bytes that frees: not those of a link to a user's file.

    Raises:
        BuildError: a build is using it.
    """
    folder = artifact.folder
    with locked_if_free(lock_path(folder), f"removes {folder.name}") as is_free:
        if not is_free:
            raise BuildError(f"{folder.name}: a build is using it")
        stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
        # A killed process leaves no half of it under its name, and the next build of the model removes the rest.
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        folder.rename(aside)
        shutil.rmtree(aside)
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)
