"""The commands `health` and `drain`, each for one endpoint on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from frontend.errors import APIError, InvalidRequest
from frontend.settings import Settings
from frontend.triton.channel import triton_credentials
from frontend.triton.client import TritonClient
from frontend.triton.health_checks import HealthResult, check_health
from frontend.triton.health_monitor import STATS_TIMEOUT_S
from model_repository.contract.request import ChatPrompt
from model_repository.model_facts import Task

_CLOSE_TIMEOUT_S = 0.5
_CHAT = ChatPrompt(({"role": "user", "content": "Hello"},))
_HAND_OVER_S = 5.0  # a frontend may not know yet that an engine drains, and send a request there again
_POLL_S = 0.1  # pause between requests for the statistics of a draining engine


async def check_endpoint(
    settings: Settings,
    *,
    model: str,
    is_generating: bool,
    deadline_s: float = STATS_TIMEOUT_S,
    needs_key: bool = False,
) -> HealthResult:
    """Return whether the engines at the first endpoint work; the other arguments are those of `check_health`.

    Args:
        needs_key: a Triton that refuses our key is not well: it is another server's, at the port of ours.

    Raises:
        SettingsError: the TLS files cannot be used.
    """
    async with _first_endpoint(settings) as triton:
        try:
            if needs_key:
                await triton.repository.ensembles()
            return await check_health(
                triton,
                model=model,
                deadline_s=deadline_s,
                stall_s=settings.engine_stall_s,
                is_generating=is_generating,
            )
        except APIError as exc:
            return HealthResult(False, f"{exc.code}: {exc}")


async def path_to_try(settings: Settings, model: str) -> str:
    """Return the path for which a model of the first endpoint is made, with /v1.

    Raises:
        APIError: Triton did not answer, or does not serve the model.
        SettingsError: the TLS files cannot be used.
    """
    async with _first_endpoint(settings) as triton:
        served = (await triton.snapshot()).names()[model].model
        if served.parameters.task is not Task.GENERATE:
            return "/v1/embeddings" if served.parameters.task is Task.EMBED else "/v1/rerank"
        try:
            await triton.tokenize(served.ensemble, _CHAT, add_special_tokens=False)
        except InvalidRequest:  # it has no chat template
            return "/v1/completions"
        return "/v1/chat/completions"


async def drain_endpoint(
    settings: Settings, *, notice_s: float, timeout_s: float, hands_over: bool = False, is_undone: bool = False
) -> tuple[bool, str]:
    """Drain the first endpoint. Return whether it became idle, and one line about that.

    Args:
        settings: with the endpoint and its TLS files.
        notice_s: in this time every frontend polls the engines once; new requests may come until then.
        timeout_s: for the running requests, the notice included.
        hands_over: then have the frontends continue them at other Tritons; they end with an error if there is none.
        is_undone: end an earlier drain instead.

    Raises:
        SettingsError: the TLS files cannot be used.
    """
    start_s, endpoint = time.monotonic(), settings.triton_endpoints[0]
    try:
        async with _first_endpoint(settings) as triton:
            ensembles = list((await triton.snapshot()).by_ensemble)
            for ensemble in ensembles:
                await triton.drain(ensemble, is_draining=not is_undone)
            while not is_undone:
                held = [await triton.engine_stats(ensemble, STATS_TIMEOUT_S) for ensemble in ensembles]
                num_running = sum(stats.num_active + stats.num_waiting for stats in held)
                num_streams = sum(stats.num_streams for stats in held)  # Triton does not end well while one is open
                passed_s = time.monotonic() - start_s
                if passed_s >= notice_s and not num_running and not num_streams:
                    return True, f"nothing runs at {endpoint} any more"
                if passed_s >= timeout_s and hands_over and passed_s < timeout_s + _HAND_OVER_S:
                    for ensemble in ensembles:
                        await triton.fail_running(ensemble)
                elif passed_s >= timeout_s:
                    return False, f"{num_running} requests still run at {endpoint} after {timeout_s:g} s"
                await asyncio.sleep(_POLL_S)
            return True, f"{endpoint} takes requests again"
    except APIError as exc:
        return False, f"{exc.code}: {exc}"


@contextlib.asynccontextmanager
async def _first_endpoint(settings: Settings) -> AsyncIterator[TritonClient]:
    endpoint, credentials = settings.triton_endpoints[0], triton_credentials(settings)
    triton = TritonClient(endpoint, credentials, settings.triton_tls_name, key=settings.triton_key)
    try:
        yield triton
    finally:
        with contextlib.suppress(TimeoutError):  # a hanging server takes no cancellations either
            await asyncio.wait_for(triton.close(), _CLOSE_TIMEOUT_S)
