"""The sender of a request and its permissions."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from frontend.triton.models import KnownName, ModelName


class KeyRole(StrEnum):
    """The routes that a key opens."""

    USER = "user"
    ADMIN = "admin"  # also the admin routes of the operations port


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request. Without a key file every sender is `ANONYMOUS`."""

    name: str
    id: str  # the first digits of the key's hash
    owner: str  # of what is stored for the key: it belongs to no later key of the same name
    role: KeyRole = KeyRole.USER
    models: tuple[str, ...] = ()  # names or patterns with *; empty: all
    organization: str = ""  # this request's; checked if the key has organizations
    project: str = ""  # this request's; checked if the key has projects

    @property
    def may_keep_models(self) -> bool:
        """Whether requests may say how long their model stays loaded."""
        return self.role is KeyRole.ADMIN or self.id == ANONYMOUS.id

    def may_name(self, name: str) -> bool:
        """Whether the key allows the name of a model, served or not."""
        return not self.models or _allowed(self.models).fullmatch(name) is not None

    def may_use(self, name: ModelName | KnownName) -> bool:
        """Whether the key allows a model. A model's id allows its aliases too, but not its adapters and presets."""
        return self.may_name(name.requested) or (name.is_plain and self.may_name(name.model_id))

    def visible(self, names: Mapping[str, ModelName]) -> dict[str, ModelName]:
        """Return the names that the key allows."""
        return {requested: name for requested, name in names.items() if self.may_use(name)}


ANONYMOUS = Caller(name="anonymous", id="anonymous", owner="anonymous")


@functools.lru_cache(maxsize=1024)
def _allowed(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in patterns))
