"""A gRPC server between a frontend and Triton that passes every message on, unchanged or garbled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from msgspec.structs import replace
from tritonclient.grpc import service_pb2

from frontend.triton.messages import payload_of
from model_repository.contract.codec import pack, unpack
from model_repository.contract.output import ChunkBatch
from model_repository.contract.tensors import CHUNK_BATCH, OUTPUTS, ensemble_of_stage, stage_name

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


def without_output(message: bytes) -> list[bytes]:
    """Leave the chunks out."""
    return [_changed(message, lambda payload: None)]


def cut_payload(message: bytes) -> list[bytes]:
    """Cut the chunks, in a message that is whole otherwise."""
    return [_changed(message, lambda payload: payload[: len(payload) // 2])]


def another_serial(message: bytes) -> list[bytes]:
    """Claim to be a later batch."""

    def later(payload: bytes) -> bytes:
        batch = unpack(ChunkBatch, payload, CHUNK_BATCH.name)
        return pack(replace(batch, serial=batch.serial + 7))

    return [_changed(message, later)]


def _changed(message: bytes, change: Callable[[bytes], bytes | None]) -> bytes:
    """Return a message with its batch of chunks changed; None takes it away."""
    response = service_pb2.ModelStreamInferResponse.FromString(message)
    answer = response.infer_response
    changed = change(payload_of(answer, CHUNK_BATCH))
    if changed is None:
        del answer.outputs[0], answer.raw_output_contents[0]
    else:
        answer.raw_output_contents[0] = len(changed).to_bytes(4, "little") + changed
    garbled: bytes = response.SerializeToString()
    return garbled


class GarblingProxy:
    """Garbles one output batch, or everything that Triton sends, for as long as a test wants."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])
        self.batch: Garble | None = None  # done to the next output batch, once
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
        if self.batch is not None and is_stream and _has_chunks(message):
            garble, self.batch = self.batch, None
            return garble(message)
        return [message]


def _has_chunks(message: bytes) -> bool:
    """Whether it is an output batch with chunks of requests. Health checks have calls of their own."""
    answer = service_pb2.ModelStreamInferResponse.FromString(message).infer_response
    is_shared = answer.model_name == stage_name(ensemble_of_stage(answer.model_name), OUTPUTS)
    if not is_shared or all(output.name != CHUNK_BATCH.name for output in answer.outputs):
        return False
    return bool(unpack(ChunkBatch, payload_of(answer, CHUNK_BATCH), CHUNK_BATCH.name).items)


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
