"""Finds out who sends a request, before anything else is done with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from frontend.caller import ANONYMOUS
from frontend.errors import AuthenticationFailed, PermissionDenied
from frontend.gateway.cors import refuse_foreign_pages
from frontend.gateway.key_file import Key, KeyLimits
from frontend.gateway.key_ring import KeyRing
from frontend.request_context import FACTS, IS_PUBLIC, SETTINGS
from frontend.settings import Settings

KEY_RING = web.AppKey("key_ring", KeyRing)  # missing: there is no key file
KEY_LIMITS = web.RequestKey("key_limits", KeyLimits)  # of the caller's key; missing: there is no key

# Probes and Prometheus have no key. The API's port has no metrics.
_OPEN_ROUTES = {"/health", "/health/live", "/health/ready", "/metrics"}


def key_ring(settings: Settings) -> KeyRing | None:
    """Return the keys that the settings name; None without a key file.

    Raises:
        KeyFileError: the file cannot be read, or breaks a rule.
    """
    if not settings.key_file:
        return None
    sha256 = settings.launcher_key_sha256
    return KeyRing(Path(settings.key_file), [Key(name="launcher", sha256=sha256)] if sha256 else [])


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Note who sends the request, or refuse it."""
    resource = request.match_info.route.resource
    if request.app.get(KEY_RING) is None:
        _refuse_foreign_page(request)
    if resource is None or resource.canonical not in _OPEN_ROUTES:
        _identify(request)
    return await handler(request)


def _refuse_foreign_page(request: web.Request) -> None:
    settings = request.app[SETTINGS]
    if request.app[IS_PUBLIC]:
        refuse_foreign_pages(request, settings.host, settings.cors_origins, settings.allow_hosts)
    else:  # it has no pages, and no proxy before it
        refuse_foreign_pages(request, settings.admin_host, (), ())


def _identify(request: web.Request) -> None:
    facts, keys = request[FACTS], request.app.get(KEY_RING)
    key = None if keys is None else keys.authenticate(_key_in(request))
    organization = _membership(request, "organization", key.organizations if key else ())
    project = _membership(request, "project", key.projects if key else ())
    named = {"organization": organization, "project": project}
    facts.label({name: value for name, value in named.items() if value})
    if key:
        request[KEY_LIMITS] = key.limits
    facts.caller = replace(key.caller() if key else ANONYMOUS, organization=organization, project=project)


def _key_in(request: web.Request) -> str:
    """Return the key that a request carries: as OpenAI's clients send it, or as llama.cpp's also do.

    Raises:
        AuthenticationFailed: it carries none.
    """
    given = request.headers.get("Authorization")
    if given is None and (key := request.headers.get("x-api-key")):
        return key
    scheme, _, key = (given or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise AuthenticationFailed("There is no API key: send it in the header `Authorization: Bearer KEY`.")
    return key.strip()


def _membership(request: web.Request, what: str, allowed: Sequence[str]) -> str:
    """Return the organization or the project that a request belongs to.

    Raises:
        PermissionDenied: it names one that its key is not for.
    """
    header = f"OpenAI-{what}"
    if not allowed:
        return request[FACTS].labels.get(what, "")  # what the client says of itself
    given = request.headers.get(header, allowed[0])
    if given not in allowed:
        raise PermissionDenied(f"{header}: the API key is not for the {what} that the request names")
    return given
