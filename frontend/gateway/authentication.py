"""The caller of each request, found by its API key before any handler runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from frontend.caller import ANONYMOUS
from frontend.endpoints import ENDPOINTS, Access
from frontend.errors import AuthenticationFailed, PermissionDenied
from frontend.gateway.cors import refuse_foreign_pages
from frontend.gateway.key_file import KeyLimits
from frontend.gateway.key_ring import KeyRing
from frontend.request_context import FACTS, IS_PUBLIC, SETTINGS
from frontend.settings import Settings

KEY_RING = web.AppKey("key_ring", KeyRing)  # missing without a key file
KEY_LIMITS: web.RequestKey[KeyLimits | None] = web.RequestKey("key_limits")  # the caller's; None without a key file

# Health checks and Prometheus send no key. Only the operations port has metrics then.
_OPEN_ROUTES = {endpoint.path for endpoint in ENDPOINTS if endpoint.access is Access.EVERYBODY} | {"/metrics"}


def key_ring(settings: Settings) -> KeyRing | None:
    """Return the keys of the settings; None without a key file."""
    return KeyRing(Path(settings.key_file)) if settings.key_file else None


def check_caller(request: web.Request) -> None:
    """Note the caller of a request.

    Raises:
        APIError: the server does not answer this caller.
    """
    app = request.app
    resource, settings = request.match_info.route.resource, app[SETTINGS]
    ring = app.get(KEY_RING)
    if ring is None:
        if app[IS_PUBLIC]:
            refuse_foreign_pages(request, settings.host, settings.cors_origins, settings.allow_hosts)
        else:  # no page and no proxy uses the operations port
            refuse_foreign_pages(request, settings.admin_host, (), ())
    if resource is None or resource.canonical not in _OPEN_ROUTES:
        _identify(request, ring)


def note_caller(request: web.Request, owner: str) -> None:
    """Note the caller of work that was begun with a key, by the key's owner.

    Raises:
        AuthenticationFailed: the key is no longer there.
    """
    ring = request.app.get(KEY_RING)
    key = None if ring is None else ring.of_owner(owner)
    request[KEY_LIMITS] = None if key is None else key.limits
    request[FACTS].caller = ANONYMOUS if key is None else key.caller()


def _identify(request: web.Request, ring: KeyRing | None) -> None:
    facts, key = request[FACTS], None if ring is None else ring.authenticate(_sent_key(request))
    request[KEY_LIMITS] = None if key is None else key.limits
    if key is None and not facts.labels:
        return  # as it was made: anonymous
    organization = _membership(request, "organization", key.organizations if key else ())
    project = _membership(request, "project", key.projects if key else ())
    named = {"organization": organization, "project": project}
    facts.label({name: value for name, value in named.items() if value})
    facts.caller = replace(key.caller() if key else ANONYMOUS, organization=organization, project=project)


def _sent_key(request: web.Request) -> str:
    """Return the key in the header `Authorization`, as OpenAI's clients send it, or in `x-api-key`."""
    header = request.headers.get("Authorization")
    if header is None and (key := request.headers.get("x-api-key")):
        return key
    scheme, _, key = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise AuthenticationFailed("There is no API key: send it in the header `Authorization: Bearer KEY`.")
    return key.strip()


def _membership(request: web.Request, kind: str, allowed: Sequence[str]) -> str:
    """Return the organization or the project of a request, if its key allows it."""
    if not allowed:
        return request[FACTS].labels.get(kind, "")  # the client's own word
    header = f"OpenAI-{kind}"
    value = request.headers.get(header, allowed[0])
    if value not in allowed:
        raise PermissionDenied(f"{header}: the API key is not for the {kind} that the request names")
    return value
