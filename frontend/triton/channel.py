"""The connection to one Triton, and the calls on it that have one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from frontend.triton.failures import error_from_rpc

RPC_TIMEOUT_S = 5.0

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # When Triton comes back it is noticed within a second; grpc's own waits grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # which is also how long one attempt may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    # A name is resolved again whenever a connection is lost. Its addresses are taken one at a time, since a stream and
    # the control of its engine must meet the same server; which one is first is drawn by lot, so that the frontends
    # spread over them.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.service_config", '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}'),
    ("grpc.enable_http_proxy", 0),  # Triton is a neighbour; a proxy in the environment is not meant for it
)


def open_channel(endpoint: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """Return a channel to a gRPC host:port; it connects when it is used. Without credentials it is not encrypted."""
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
    return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)


async def unary(method: Callable[..., Any], request: Any, timeout_s: float = RPC_TIMEOUT_S) -> Any:
    """Return the answer to a request that has one.

    Raises:
        APIError: what Triton or grpc said.
    """
    try:
        return await method(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as exc:
        raise error_from_rpc(exc) from exc
