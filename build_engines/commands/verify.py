"""`verify`: checks that an artifact is complete and fits this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from build_engines import artifact
from build_engines.artifact import Manifest
from build_engines.errors import ArtifactInvalid
from model_repository.system.machine import NEEDS, Machine, read_machine, why_unfit


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "verify",
        help="check that an artifact is complete and fits this machine",
        description="Compare every file of an artifact with its digest, and the requirements of the artifact with "
        "this machine. Each check prints one line; a failed check gives status 1.",
        epilog="example: conch verify ~/.local/share/conch/artifacts/demo-*",
    )
    command.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT", help="a folder from `build`")
    command.set_defaults(command=_verify)


def _verify(options: argparse.Namespace) -> None:
    machine, failed = read_machine(), []
    for artifact_dir in options.artifacts:
        num_failed = 0
        for name, reason in _checks(artifact_dir, machine):
            num_failed += reason is not None
            print(f"{'ok' if reason is None else 'FAILED':8}{name}{'' if reason is None else f': {reason}'}")
        if num_failed:
            failed.append(f"{artifact_dir}: {num_failed} of its checks failed")
    if failed:
        raise ArtifactInvalid("; ".join(failed))


def _checks(artifact_dir: Path, machine: Machine) -> Iterator[tuple[str, str | None]]:
    """Yield each check with its failure, or None."""
    manifest = Manifest.load(artifact_dir)
    yield f"manifest: {manifest.model_id}, {manifest.runtime}, {manifest.precision}, key {manifest.key}", None
    try:
        artifact.verify(artifact_dir)
        reason = None
    except ArtifactInvalid as exc:
        reason = str(exc)
    yield f"digests of {len(manifest.files)} files", reason
    for name, value in manifest.requires.items():
        label, _ = NEEDS.get(name, (name, None))
        yield f"{label}: {value}", why_unfit({name: value}, machine)
