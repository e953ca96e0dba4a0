"""A call of a model: the checked body, the model it names, and the parts of the body that have no effect."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from aiohttp import web

from frontend.errors import APIError, InvalidRequest, ModelNotReady, UnsupportedValue, shown
from frontend.handlers.bodies import read_body
from frontend.protocol.body import ModelBody
from frontend.protocol.fields import QueuedBody
from frontend.request_context import FACTS, LIMITS, SETTINGS, TRITON, find_model, sender_of
from frontend.telemetry.observer import OBSERVER
from frontend.translate.places import Places
from frontend.translate.requests import ignored_fields
from frontend.triton.models import ModelName
from model_repository.contract.request import MAX_IGNORED_PLACES, MAX_PLACE_CHARS
from model_repository.model_facts import Task

IGNORED_PARAMS = "x-ignored-params"
MAX_IGNORED_CHARS = 2048  # of the header


@dataclass(frozen=True, slots=True)
class Call[Request: ModelBody]:
    """A call of a model.

    Args:
        app: `request.app`, which aiohttp finds anew each time.
        headers: for the answer.
        ignored: the places of fields without effect. Keywords of schemas come later, from the tokenizer stage.
        places: of the body's parts, for errors.
    """

    request: web.Request
    app: web.Application
    body: Request
    name: ModelName
    headers: Mapping[str, str]
    ignored: Sequence[str]
    places: Places


async def answer_call[Request: ModelBody](
    request: web.Request,
    model: type[Request],
    handler: Callable[[Call[Request]], Awaitable[web.StreamResponse]],
    *,
    tasks: Collection[Task],
    is_counted: bool,
) -> web.StreamResponse:
    """Read a call, count it as a request if the endpoint has no other cost, and return the handler's answer.

    Args:
        tasks: of the models that the endpoint calls; empty: any.

    Raises:
        UnsupportedValue: the model has another task.
        APIError: the body breaks a rule, the key does not allow the model, or the key has reached its limit.
    """
    app = request.app
    body, ignored = await read_body(request, model)
    request[FACTS].label(body.bookkeeping())
    name = await _woken(request, body.model)
    task = name.model.parameters.task
    if tasks and task not in tasks:
        rule = f"the task of this model is {task}, and {request.path} needs {' or '.join(tasks)}"
        raise UnsupportedValue(f"model={shown(body.model)}: {rule}", param="model")
    ignored += ignored_fields(body, name)
    if isinstance(body, QueuedBody) and body.keep_alive_s is not None and not request[FACTS].caller.may_keep_models:
        ignored += [field for field in ("keep_alive", "ttl") if getattr(body, field) is not None]
    refuse_ignored(app, ignored)
    headers = ignored_header(ignored)
    if is_counted and (limits := app.get(LIMITS)) is not None:
        await limits.count_request(request, name.model.id)
    call = Call(request, app, body, name, headers, ignored, Places(body))
    try:
        return await handler(call)
    except APIError as exc:
        call.places.blame(exc)
        raise


async def _woken(request: web.Request, requested: str) -> ModelName:
    """Return the model that the client names. One that was scaled to zero may be unknown until it is there.

    Raises:
        APIError: see `find_model`.
    """
    try:
        return await find_model(request, requested)
    except ModelNotReady as exc:
        app, facts = request.app, request[FACTS]
        try:
            hold = app[TRITON].hold(facts.served_model, sender_of(request), facts.caller.may_name)
        except ModelNotReady:
            raise exc from None
    app[OBSERVER].begin_generation(facts)  # the wish counts
    try:
        await hold.ready()
    finally:
        hold.release()
    return await find_model(request, requested)


def refuse_ignored(app: web.Application, places: Sequence[str]) -> None:
    """Refuse ignored parts of a body if the server is told to.

    Raises:
        InvalidRequest: there is one.
    """
    if places and app[SETTINGS].strict_extra:
        rule = "unknown, or without effect on this model; this server refuses such fields (--strict-extra)"
        raise InvalidRequest(f"{places[0]}: {rule}", param=places[0], code="unknown_parameter")


def ignored_header(places: Sequence[str]) -> dict[str, str]:
    """Return the header with the places of ignored parts of a body: one line of bounded length."""
    if not places:
        return {}
    listed = [quote(place[:MAX_PLACE_CHARS], safe="[].$") for place in places[:MAX_IGNORED_PLACES]]
    num_shown = sum(num_chars <= MAX_IGNORED_CHARS for num_chars in itertools.accumulate(map(len, listed)))
    return {IGNORED_PARAMS: ",".join(listed[:num_shown] + ["..."] * (num_shown < len(places)))}
