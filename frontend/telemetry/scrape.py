"""The endpoints for Prometheus and for endpoint pickers."""

from __future__ import annotations

import asyncio

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from frontend.telemetry import definitions
from frontend.telemetry.observer import OBSERVER
from frontend.telemetry.picker_metrics import PickerMetrics


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics. The numbers are about all clients: they belong on a port that is not public."""
    observer = request.config_dict[OBSERVER]
    observer.metrics.series(definitions.TASKS).set(len(asyncio.all_tasks()))
    observer.metrics.flush()
    body, content_type = await asyncio.to_thread(  # several workers share files, which it reads
        observer.metrics.exposition, request.headers.get("Accept", ""), has_vllm_names=observer.has_vllm_names
    )
    return web.Response(body=body, headers={"Content-Type": content_type})


async def picker_metrics(request: web.Request) -> web.Response:
    """GET /metrics on the API's port: about engines, not about clients."""
    registry = CollectorRegistry()
    registry.register(PickerMetrics(request.app[OBSERVER].engines))
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return web.Response(body=encode(registry), headers={"Content-Type": content_type})
