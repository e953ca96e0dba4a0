"""`create`: a preset of a model, by a Modelfile."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from build_engines.catalog import Catalog
from build_engines.errors import BuildError, CatalogError, NotStored
from build_engines.model_source import DEMO_MODELS
from build_engines.modelfile import read_modelfile
from build_engines.presets import Presets, changed_presets, model_of, preset_of
from build_engines.serving import check_name, names_of
from build_engines.store import find, stored
from model_repository.model_facts import Task
from model_repository.model_parameters import Preset
from model_repository.system.home import add_home

_EPILOG = '''\
example:
  cat > Modelfile <<END
  FROM demo
  SYSTEM """You answer in one sentence."""
  PARAMETER temperature 0.5
  END
  conch create brief -f Modelfile
'''


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "create",
        help="give a model a further name, with a system prompt and defaults",
        description="Make a preset of a model: a further name, with a system prompt and request defaults. A server "
        "that serves the model serves its presets too, from its next start on. An existing preset is replaced.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("name", metavar="NAME", help="the preset's name")
    file_help = "Ollama's form, with FROM, SYSTEM and PARAMETER (Modelfile)"
    command.add_argument("-f", "--file", type=Path, default=Path("Modelfile"), metavar="FILE", help=file_help)
    add_home(command, "with artifacts/ and presets.json")
    command.set_defaults(command=_create)


def _create(options: argparse.Namespace) -> None:
    name, path = options.name, options.file
    check_name("preset", name)
    _check_is_free(options.home, name)
    try:
        modelfile = read_modelfile(path.read_text(encoding="utf-8"))
    except (BuildError, UnicodeDecodeError) as exc:
        raise BuildError(f"{path}: {exc}") from exc
    with changed_presets(options.home) as presets:
        model_id, base = _base(options.home, presets, modelfile.base)
        system = base.system if modelfile.system is None else modelfile.system
        if (former := model_of(presets, name)) is not None:
            del presets[former][name]
        presets.setdefault(model_id, {})[name] = preset_of(system, {**base.defaults, **modelfile.defaults})
    print(f"preset      {name} of {model_id}")


def _check_is_free(home: Path, name: str) -> None:
    """Check that no model, alias or adapter has a name.

    Raises:
        BuildError: names the owner.
    """
    names = [(each, f"model {each}") for each in DEMO_MODELS]
    for artifact in stored(home):
        if manifest := artifact.manifest:
            names += names_of(manifest.model_id, manifest.serving.aliases, manifest.adapters)
    with contextlib.suppress(CatalogError):
        names.append((name, f"model {Catalog.load().find(name, takes_part=False).model_id} of the catalog"))
    if (owner := dict(names).get(name)) is not None:
        raise BuildError(f"preset {name}: {owner} has the same name")


def _base(home: Path, presets: Presets, name: str) -> tuple[str, Preset]:
    """Return the id of the model of a FROM, and the preset that it names, or else an empty one.

    Raises:
        BuildError: it is not built, or has no conversations.
    """
    if (model_id := model_of(presets, name)) is not None:
        return model_id, presets[model_id][name]
    try:
        [artifact, *_] = find(home, name)
    except NotStored as exc:
        raise BuildError(f"FROM {name}: not in the store: `conch pull {name}` builds it") from exc
    if artifact.manifest is not None and artifact.manifest.task is not Task.GENERATE:
        raise BuildError(f"FROM {name}: its task is {artifact.manifest.task}: a preset needs a model that generates")
    return artifact.model_id, Preset()
