"""`--triton [MODEL[,ALIAS...]=]ENDPOINT[,ENDPOINT...]`: where Tritons are, and what is offered of what they serve."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from frontend.settings import SettingsError
from model_repository.contract.tensors import model_id_to_slug

DNS_PREFIX = "dns:"  # before the host:port of an endpoint that is followed
ANY_MODEL = ""  # in the place of a model's id: whatever is served there

_ENDPOINT = re.compile(r"(?:dns:)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What all `--triton` say together."""

    models: Mapping[str, Collection[str]]  # by endpoint: the ids that it is named for, or ANY_MODEL
    aliases: Mapping[str, str]  # further names, and the ids that they stand for; the models themselves know them all

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Endpoints:
        """Read them.

        Raises:
            SettingsError: one breaks a rule; the message has the option, its value and the rule.
        """
        models: dict[str, list[str]] = {}
        ids: dict[str, str] = {}
        for text in texts:
            before, sign, after = text.rpartition("=")
            model, *aliases = before.split(",")
            try:
                if sign:
                    _check_names(model, aliases, ids)
                for endpoint in after.split(","):
                    named_for = models.setdefault(_endpoint(endpoint), [])
                    if model in named_for:
                        raise ValueError(f"{endpoint} can be named once only" + (f" for {model}" if model else ""))
                    named_for.append(model)
            except ValueError as exc:
                raise SettingsError(f"--triton={text!r}: {exc}") from exc
        return cls(models, {name: model for name, model in ids.items() if name != model})

    @property
    def expected(self) -> frozenset[str]:
        """The ids of the models that are named: they are meant to be served, whether they are now or not."""
        return frozenset(model for named_for in self.models.values() for model in named_for) - {ANY_MODEL}

    @property
    def is_complete(self) -> bool:
        """Whether nothing else than those can be served."""
        return not any(ANY_MODEL in named_for for named_for in self.models.values())


class ModelFilter:
    """The ids of the models that are offered through one endpoint, which may be named for a model in several ways."""

    def __init__(self, models: Collection[str] = (ANY_MODEL,)) -> None:
        self._num_namings = Counter(models)

    def __contains__(self, model_id: object) -> bool:
        return ANY_MODEL in self._num_namings or model_id in self._num_namings

    def add(self, models: Collection[str]) -> None:
        """Let these through too."""
        self._num_namings.update(models)

    def remove(self, models: Collection[str]) -> bool:
        """Undo an `add`; return whether any model is still let through."""
        self._num_namings -= Counter(models)
        return bool(self._num_namings)


def _check_names(model: str, aliases: Collection[str], ids: dict[str, str]) -> None:
    """Add the names of a model to those that are known, with its id."""
    model_id_to_slug(model)
    for name in (model, *aliases):
        if not name:
            raise ValueError("an alias must not be empty")
        if ids.setdefault(name, model) != model:
            raise ValueError(f"{name} is a name of {ids[name]} already")


def _endpoint(text: str) -> str:
    found = _ENDPOINT.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65535 or not _is_name(found["host"]):
        raise ValueError(f"{text!r} must be host:port, such as 127.0.0.1:8001, or dns:host:port")
    return text


def _is_name(host: str) -> bool:
    """Whether it can be looked up: its labels are neither empty nor too long."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False
