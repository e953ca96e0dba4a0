"""The models that a server without a MODEL offers: those of the store."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from build_engines import artifact
from build_engines.artifact import Manifest
from build_engines.digests import Digests
from build_engines.errors import ArtifactInvalid, BuildError
from build_engines.presets import read_presets
from build_engines.render import ServeOptions
from build_engines.serving import Loading, check_names_differ, names_of
from build_engines.store import Stored, stored
from model_repository.model_parameters import Load
from model_repository.system.machine import read_machine, why_unfit

logger = logging.getLogger(__name__)

_ON_DEMAND = Loading(load=Load.DEMAND)


def offered(home: Path, options: ServeOptions) -> dict[Path, ServeOptions]:
    """Return the newest artifact of each model with its options, the newest model first.

    The models are loaded on demand, unless an option of the model or of all says otherwise. Artifacts that cannot be
    served, and those with a name of another one, are left out; the log says why.

    Raises:
        BuildError: there is no artifact that can be served.
    """
    found: dict[Path, ServeOptions] = {}
    model_ids, names, stored_presets = set[str](), list[tuple[str, str]](), read_presets(home)
    for each in sorted(stored(home), key=_created, reverse=True):
        if each.model_id in model_ids:
            continue
        try:
            manifest = _checked(each)
            presets = stored_presets.get(manifest.model_id, {})
            own_names = [*names_of(manifest.model_id, manifest.serving.aliases, manifest.adapters, presets)]
            check_names_differ([*names, *own_names])
        except BuildError as exc:
            mending = f"`conch build` makes another one, and `conch rm {each.folder.name}` removes this one"
            logger.warning("left out    %s: %s: %s", each.folder.name, exc, mending)
            continue
        model_ids.add(manifest.model_id)
        names += own_names
        loading = options.loading.or_else(manifest.serving.loading).or_else(_ON_DEMAND)
        found[each.folder] = dataclasses.replace(options, loading=loading, presets=presets)
    if not found:
        raise BuildError(f"{home / 'artifacts'}: there is no artifact that can be served: `conch list` shows them")
    return found


def _created(each: Stored) -> int:
    return 0 if each.manifest is None else each.manifest.created


def _checked(each: Stored) -> Manifest:
    """Return the manifest of an artifact that this machine can serve.

    Raises:
        ArtifactInvalid: the artifact is incomplete or changed, or needs another machine.
    """
    if each.manifest is None:
        raise ArtifactInvalid(each.error)
    if each.manifest.requires and (reason := why_unfit(each.manifest.requires, read_machine())):
        raise ArtifactInvalid(reason)
    return artifact.verify(each.folder, Digests.beside(each.folder.resolve()))
