"""Names, defaults and loading of a served model, which can change without another build."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

from build_engines.errors import BuildError
from model_repository.contract.tensors import model_id_to_ensemble
from model_repository.model_parameters import Load, ModelDefaults, checked_defaults
from model_repository.quantities import seconds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """When a model is loaded and unloaded, as ModelParameters has it; None: not said."""

    load: Load | None = None
    keep_alive_s: float | None = None
    is_pinned: bool | None = None

    @classmethod
    def of(cls, load: str | None, keep_alive: str | None, is_pinned: bool | None) -> Loading:
        """Read the options of a user.

        Raises:
            BuildError: `keep_alive` is no duration.
        """
        try:
            seconds = None if keep_alive is None else seconds_of(keep_alive)
        except ValueError as exc:
            raise BuildError(f"--keep-alive {keep_alive}: {exc}") from exc
        return cls(
            load=None if load is None else Load(load),
            keep_alive_s=-1.0 if seconds == math.inf else seconds,
            is_pinned=is_pinned,
        )

    @property
    def text(self) -> str:
        """Describe it; empty: nothing is said."""
        loaded = {None: "", Load.START: "at the start", Load.DEMAND: "on demand"}[self.load]
        unloaded = ""
        if (seconds := self.keep_alive_s) is not None:
            unloaded = "never unloaded" if seconds < 0 else f"unloaded after {seconds:g} s without work"
        return ", ".join(filter(None, (loaded, unloaded, "pinned" if self.is_pinned else "")))

    def or_else(self, other: Loading) -> Loading:
        """Return it with values of another one where it says nothing."""
        own = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(other, **own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The part of a manifest that is not part of its key."""

    aliases: tuple[str, ...] = ()
    defaults: ModelDefaults = field(default_factory=ModelDefaults)
    loading: Loading = Loading()

    @classmethod
    def of(cls, aliases: Iterable[str], defaults: Mapping[str, object], loading: Loading = Loading()) -> Serving:
        """Check the names and values of a user.

        Raises:
            BuildError: an alias or a default breaks its rule.
        """
        aliases = tuple(aliases)
        for alias in aliases:
            check_name("alias", alias)
        try:
            return cls(aliases=aliases, defaults=checked_defaults(defaults), loading=loading)
        except ValueError as exc:
            raise BuildError(f"default {exc}") from exc

    def with_aliases(self, aliases: Iterable[str]) -> Serving:
        """Return it with further names.

        Raises:
            BuildError: an alias breaks its rule.
        """
        checked = Serving.of(aliases, {}).aliases
        return replace(self, aliases=tuple(dict.fromkeys((*self.aliases, *checked))))


def check_name(kind: str, name: str) -> None:
    """Check a name that is neither that of an ensemble nor of a file.

    Raises:
        BuildError: names the kind of name, the name and the rule.
    """
    if not name or not name.isprintable() or name != name.strip():
        raise BuildError(f"{kind} {name!r}: printable characters, no space at either end")


def check_id(name: str) -> None:
    """Check the id of a model, or the name of an adapter, which clients use as a model id.

    Raises:
        BuildError: it cannot be the name of an ensemble or of a file.
    """
    try:
        model_id_to_ensemble(name)
    except ValueError as exc:
        raise BuildError(str(exc)) from exc


def check_names(model_id: str, aliases: Iterable[str], adapters: Collection[str]) -> None:
    """Check every name of one model for clients.

    Raises:
        BuildError: a name breaks its rule, or is used twice.
    """
    for name in (model_id, *adapters):
        check_id(name)
    check_names_differ(names_of(model_id, aliases, adapters))


def names_of(
    model_id: str, aliases: Iterable[str], adapters: Iterable[str], presets: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield each name of a model for clients, with its owner: the model, an alias, an adapter or a preset."""
    yield model_id, f"model {model_id}"
    yield from ((alias, f"alias {alias!r} of {model_id}") for alias in aliases)
    yield from ((adapter, f"adapter {adapter} of {model_id}") for adapter in adapters)
    yield from ((preset, f"preset {preset} of {model_id}") for preset in presets)


def check_names_differ(names: Iterable[tuple[str, str]]) -> None:
    """Check that pairs of name and owner have different names.

    Raises:
        BuildError: names the two owners of a name.
    """
    owners: dict[str, str] = {}
    for name, owner in names:
        if name in owners:
            raise BuildError(
                f"{owner}: " + ("named twice" if owners[name] == owner else f"{owners[name]} has the same name")
            )
        owners[name] = owner
