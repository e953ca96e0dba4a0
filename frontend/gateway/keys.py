"""API keys, as the key file has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import AwareDatetime, ConfigDict, Field

from frontend.caller import NO_LIMITS, Caller, KeyLimits, Role
from frontend.gateway.secret import id_of

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
_Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._:/*-]{0,255}$")]
_Word = Annotated[str, Field(pattern=r"^[!-~]{1,128}$")]  # what can stand in a header


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key as the key file has it: its hash, and what it may do."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    name: Name
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    role: Role = Role.USER
    models: tuple[_Pattern, ...] = ()  # empty: all
    organizations: tuple[_Word, ...] = ()  # empty: the key is bound to none; else the first is the default
    projects: tuple[_Word, ...] = ()  # likewise
    limits: KeyLimits = NO_LIMITS
    created_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None

    @property
    def id(self) -> str:
        """What logs and limits know the key by."""
        return id_of(self.sha256)

    def has_expired(self, now: datetime) -> bool:
        """Whether it is too late to use the key."""
        return self.expires_at is not None and now >= self.expires_at

    def caller(self) -> Caller:
        """Return who uses the key; the request names organization and project."""
        return Caller(
            name=self.name,
            id=self.id,
            role=self.role,
            models=self.models,
            limits=self.limits,
        )
