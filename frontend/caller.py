"""Who asks, and what they may do: what a key stands for while its request is served."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from frontend.triton.models import KnownName, ModelName


class Role(StrEnum):
    """What kinds of routes a key opens."""

    USER = "user"
    ADMIN = "admin"  # the operations port's admin routes too


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request. Where there is no key file, everybody is the anonymous one."""

    name: str
    id: str  # the first digits of the key's hash: it tells keys apart and gives none away
    role: Role = Role.USER
    models: tuple[str, ...] = ()  # names or patterns with *; empty: all
    organization: str = ""  # of this request; checked where the key is bound to some
    project: str = ""  # of this request; checked in the same way

    def may_name(self, name: str) -> bool:
        """Whether a name of a model is among those that the key allows, served or not."""
        return not self.models or _allowed(self.models).fullmatch(name) is not None

    def may_use(self, name: ModelName | KnownName) -> bool:
        """Whether the key allows a model. Its id allows its aliases too, but no adapter: that is a model of its own."""
        return self.may_name(name.asked) or (not name.lora_name and self.may_name(name.model_id))

    def visible(self, names: Mapping[str, ModelName]) -> dict[str, ModelName]:
        """Return those that the key allows."""
        return {asked: name for asked, name in names.items() if self.may_use(name)}


ANONYMOUS = Caller(name="anonymous", id="anonymous")


@functools.lru_cache(maxsize=1024)
def _allowed(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in patterns))
