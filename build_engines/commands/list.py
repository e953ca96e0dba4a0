"""`list`: the catalog and the built artifacts."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from build_engines.artifact import Manifest
from build_engines.catalog import Catalog
from build_engines.commands.plan import add_catalog_option
from build_engines.errors import ArtifactInvalid
from build_engines.model_entry import ModelEntry
from build_engines.tables import text_table
from model_repository.system.home import add_home

_HEADER = ("model", "short name", "params", "context", "precisions", "tools", "license", "built")
_EXAMPLES = """\
examples:
  conch list                             the models, and their artifacts
  conch list --home /srv/conch           the models, and their artifacts in another folder
  conch list --catalog models.yaml       also the models of a file
  conch list --json                      all fields of the catalog
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "list",
        help="show the models of the catalog and the built artifacts",
        description="Show the models of the catalog, which `plan` and `build` find by name, and the built artifacts.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_home(command, "with artifacts/")
    add_catalog_option(command)
    command.add_argument("--json", action="store_true", help="print everything as JSON")
    command.set_defaults(command=_list)


@dataclasses.dataclass(frozen=True, slots=True)
class _Built:
    """A folder of artifacts/."""

    folder: str
    manifest: Manifest | None  # None: not readable
    error: str = ""

    @property
    def summary(self) -> str:
        if self.manifest is None:
            return self.error
        defaults = (f"{name}={json.dumps(value)}" for name, value in self.manifest.defaults.items())
        return " ".join((self.manifest.runtime, self.manifest.precision, *defaults))


def _list(options: argparse.Namespace) -> None:
    catalog, built = Catalog.load(*options.catalog), list(_built(options.home / "artifacts"))
    if options.json:
        print(json.dumps(_object(catalog, built), indent=2))
        return
    print("\n".join(text_table(_HEADER, (_row(entry, built) for entry in catalog))))
    others = [item for item in built if not _is_listed(item, catalog)]
    if others:
        print("\nBuilt, and not in the catalog")
        print("\n".join(f"  {item.folder}  {item.summary}" for item in others))


def _built(artifacts_dir: Path) -> Iterator[_Built]:
    """Yield the artifacts of the folder. Names with a dot are unfinished builds."""
    for folder in sorted(artifacts_dir.glob("[!.]*/")):
        try:
            yield _Built(folder.name, Manifest.load(folder))
        except ArtifactInvalid as exc:
            yield _Built(folder.name, None, str(exc))


def _is_listed(item: _Built, catalog: Catalog) -> bool:
    return item.manifest is not None and any(entry.model_id == item.manifest.model_id for entry in catalog)


def _of(entry: ModelEntry, built: list[_Built]) -> list[_Built]:
    return [item for item in built if item.manifest is not None and item.manifest.model_id == entry.model_id]


def _row(entry: ModelEntry, built: list[_Built]) -> tuple[str, ...]:
    return (
        entry.model_id,
        next((alias for alias in entry.aliases if ":" in alias), ""),
        f"{entry.architecture.num_parameters / 1e9:.1f} B",
        str(entry.seq_len_limit),
        ", ".join(entry.precisions),
        entry.tool_call_format,
        f"{entry.license}{', gated' if entry.is_gated else ''}",
        ", ".join(item.summary for item in _of(entry, built)) or "no",
    )


def _object(catalog: Catalog, built: list[_Built]) -> dict[str, object]:
    models = [
        dataclasses.asdict(entry)
        | {
            "num_parameters": entry.architecture.num_parameters,
            "artifacts": [item.folder for item in _of(entry, built)],
        }
        for entry in catalog
    ]
    others = [{"folder": item.folder, "built": item.summary} for item in built if not _is_listed(item, catalog)]
    return {"models": models, "other_artifacts": others}
