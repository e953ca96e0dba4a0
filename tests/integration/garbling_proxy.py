"""A gRPC server between a frontend and Triton that passes everything on, until it is told to garble it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from model_repository.contract import DELIVERED, DELIVERED_TEXTS

_MAX_CALLS = 256

type Garble = Callable[[bytes], list[bytes]]  # a message to those that take its place


def truncated(message: bytes) -> list[bytes]:
    """Cut it."""
    return [message[: len(message) // 2]]


def noise(message: bytes) -> list[bytes]:
    """Replace it by as many random bytes."""
    return [random.randbytes(len(message))]


def repeated(message: bytes) -> list[bytes]:
    """Send it twice."""
    return [message, message]


def lost(message: bytes) -> list[bytes]:
    """Send it never."""
    return []


def without_texts(message: bytes) -> list[bytes]:
    """Leave a tensor out."""
    return [_changed(message, lambda names: names.index(DELIVERED_TEXTS.name), lambda raw: None)]


def fewer_texts(message: bytes) -> list[bytes]:
    """Have fewer texts than there are numbers that they are for."""
    return [_changed(message, lambda names: names.index(DELIVERED_TEXTS.name), lambda raw: b"")]


def another_serial(message: bytes) -> list[bytes]:
    """Claim to be a later delivery."""

    def later(raw: bytes) -> bytes:
        words = np.frombuffer(raw, np.int64).copy()
        words[0] += 7
        return words.tobytes()

    return [_changed(message, lambda names: names.index(DELIVERED.name), later)]


def _changed(message: bytes, find: Callable[[list[str]], int], change: Callable[[bytes], bytes | None]) -> bytes:
    """Return a message with one of its tensors changed; None takes it away."""
    response = service_pb2.ModelStreamInferResponse.FromString(message)
    answer = response.infer_response
    index = find([output.name for output in answer.outputs])
    changed = change(answer.raw_output_contents[index])
    if changed is None:
        del answer.outputs[index], answer.raw_output_contents[index]
    else:
        answer.raw_output_contents[index] = changed
    garbled: bytes = response.SerializeToString()
    return garbled


class GarblingProxy:
    """Garbles deliveries one after the other, or all that Triton says, for as long as it is told to."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])
        self.delivery: Garble | None = None  # done to the next delivery, once
        self.everything: Garble | None = None

    def pass_on(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Carry one call; one with a single message each way is nothing else."""
        call = self._channel.stream_stream(method)(requests)
        context.add_callback(call.cancel)
        try:
            for message in call:
                yield from self._garbled(message, is_stream=method.endswith("/ModelStreamInfer"))
        except grpc.RpcError as exc:
            context.abort(exc.code(), exc.details())

    def _garbled(self, message: bytes, *, is_stream: bool) -> list[bytes]:
        if self.everything is not None:
            return self.everything(message)
        if self.delivery is not None and is_stream and _is_delivery(message):
            garble, self.delivery = self.delivery, None
            return garble(message)
        return [message]


def _is_delivery(message: bytes) -> bool:
    response = service_pb2.ModelStreamInferResponse.FromString(message)
    return any(output.name == DELIVERED.name for output in response.infer_response.outputs)


@contextmanager
def garbling(endpoint: str) -> Iterator[tuple[GarblingProxy, str]]:
    """Run a proxy; yield it and its endpoint."""
    proxy = GarblingProxy(endpoint)

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            def carry(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
                return proxy.pass_on(details.method, requests, context)

            return grpc.stream_stream_rpc_method_handler(carry)

    server = grpc.server(ThreadPoolExecutor(_MAX_CALLS), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield proxy, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
        proxy._channel.close()
