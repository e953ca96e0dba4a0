"""`--triton [MODEL[,ALIAS...]=]ENDPOINT[,ENDPOINT...]`: the endpoints of Tritons, and the models offered there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from frontend.settings import SettingsError
from model_repository.contract.tensors import model_id_to_ensemble

DNS_PREFIX = "dns:"  # prefix of a host:port: each address of the host is an endpoint
ANY_MODEL = ""  # stands for a model's id: all models that are served there

_ENDPOINT = re.compile(r"(?:dns:)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """All options `--triton` together."""

    models: Mapping[str, Collection[str]]  # the model ids before `=`, or ANY_MODEL, by endpoint
    aliases: Mapping[str, str]  # id by alias, for aliases in the options; the models have others too

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Endpoints:
        """Parse the values of the options.

        Raises:
            SettingsError: a value breaks a rule.
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
        """The ids of the named models. They are expected to be served, now or later."""
        return frozenset(model for named_for in self.models.values() for model in named_for) - {ANY_MODEL}

    @property
    def is_complete(self) -> bool:
        """Whether only the expected models can be served."""
        return not any(ANY_MODEL in named_for for named_for in self.models.values())


class ModelFilter:
    """The ids of the models that are offered through one endpoint. Several options may name the same model."""

    def __init__(self, models: Collection[str] = (ANY_MODEL,)) -> None:
        self._num_namings = Counter(models)

    def __contains__(self, model_id: object) -> bool:
        return ANY_MODEL in self._num_namings or model_id in self._num_namings

    def add(self, models: Collection[str]) -> None:
        """Offer these models too."""
        self._num_namings.update(models)

    def remove(self, models: Collection[str]) -> bool:
        """Undo an `add`; return whether any model is still offered."""
        self._num_namings -= Counter(models)
        return bool(self._num_namings)


def _check_names(model: str, aliases: Collection[str], ids: dict[str, str]) -> None:
    """Add a model's id and aliases to the known names."""
    model_id_to_ensemble(model)
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
    """Whether a DNS lookup accepts the host: its labels are neither empty nor too long."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False
