"""Prompts with images in llama.cpp. A process of its own computes them: the calls hold Python's lock for seconds."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from model_repository.contract.request import IMAGE_PLACE, EngineRequest
from model_repository.contract.rules import fitting_max_tokens
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.images import ImageReader, Picture
from model_repository.engine.llama_cpp.context import SlotCache, warm_up
from model_repository.engine.llama_cpp.library import llama
from model_repository.engine.llama_cpp.weights import load_weights
from model_repository.engine.runtime import EngineConfig, ImageCounts
from model_repository.engine.scheduler import ComputedPrompt, num_common_tokens
from model_repository.errors import EngineFailed
from model_repository.system.forked_process import ForkedProcess, answer_of

# With equal priority, a step of the batch waits for threads that compute images: beside four clients of images, four
# streams of the demo model in one context got 39 events a second, and with this niceness 111 (without images 291).
_NICENESS = 5
_SMALL_IMAGE = (64, 64)
_MAX_S = 120.0  # all images of a request and the text before them; a process that takes longer hangs


@dataclass(frozen=True, slots=True)
class _Work:
    request: EngineRequest
    adapter: Adapter | None


type _Answer = tuple[EngineRequest, ComputedPrompt, ImageCounts]


class ImagePrompts:
    """Computes the beginnings of prompts, up to the last image.

    Args:
        make_params: returns the parameters of a context with as many slots as the runtime's own contexts. Its number of
            threads is also the projector's.

    Raises:
        EngineFailed: the projector does not load, or does not fit the model.
    """

    def __init__(
        self, model: Path, projector: Path, make_params: Callable[[], llama.LlamaContextParams], config: EngineConfig
    ) -> None:
        def make_computer() -> _Computer:
            return _Computer(model, projector, make_params(), config)

        # Once this process has computed on a device, a fork of it hangs in the device's driver.
        has_device = config.gpu_layers > 0
        self._process = ForkedProcess(
            lambda connection: _keep_serving(connection, make_computer, ends_after_failure=has_device),
            is_replaced=not has_device,
        )
        self._process.call(None)

    def compute(self, request: EngineRequest, adapter: Adapter | None = None) -> _Answer:
        """Return the request with all tokens of its images, the KV cache of its beginning, and what was computed.

        Raises:
            InvalidRequest: an image is not readable, or the prompt does not fit the context window.
            InternalError: the process has ended, or hangs.
            EngineFailed: the process has ended, and there cannot be another one.
        """
        # Twice the time in which the keeper of the computing process ends that process.
        answer: _Answer = self._process.call(_Work(request, adapter), 2 * _MAX_S)
        return answer

    def close(self) -> None:
        self._process.close()


def _keep_serving(connection: Connection, make_computer: Callable[[], _Computer], *, ends_after_failure: bool) -> None:
    """Pass calls on to a process with llama.cpp. Only a process without llama.cpp's threads can fork its successor."""
    serve = functools.partial(_serve, make_computer=make_computer, ends_after_failure=ends_after_failure)
    with closing(ForkedProcess(serve)) as process:
        while True:
            work: _Work | None = connection.recv()
            timeout_s = None if work is None else _MAX_S  # loading the model may take long
            connection.send(answer_of(functools.partial(process.call, timeout_s=timeout_s), work))


def _serve(connection: Connection, make_computer: Callable[[], _Computer], *, ends_after_failure: bool) -> None:
    os.nice(_NICENESS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # llama.cpp writes many lines about each image
    reader = ImageReader()  # forked before llama.cpp has threads
    computer: _Computer | None = None

    def answer(work: _Work | None) -> _Answer | None:
        nonlocal computer
        computer = computer or make_computer()
        return None if work is None else computer.compute(work, reader.read(work.request.images))

    kind = ""
    while not (ends_after_failure and kind == "failed"):  # a lost device computes no more
        kind, result = answer_of(answer, connection.recv())
        connection.send((kind, result))


def load_projector(
    path: Path, model: llama.LlamaModel, num_threads: int, *, is_on_device: bool = False
) -> llama.MtmdContext:
    """Load the projector of a model.

    Raises:
        EngineFailed: it does not load, or does not fit the model.
    """
    params = llama.MtmdContextParams()
    params.n_threads, params.use_gpu = num_threads, is_on_device
    try:
        projector = llama.MtmdContext(str(path), model, params)
    except (OSError, RuntimeError, ValueError, MemoryError) as exc:
        raise EngineFailed(f"{path}: llama.cpp does not load it: {exc}") from exc
    if not projector.supports_vision or projector.uses_mrope:
        raise EngineFailed(f"{path}: expected one for images, and for a model without M-RoPE")
    return projector


@dataclass(slots=True)
class _Slot:
    index: int
    token_ids: list[int] = field(default_factory=list)
    family: tuple[str, str] = ("", "")  # the key of the adapter, and the salt
    last_used: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a prompt: a text, or an image that llama.cpp has cut into chunks."""

    token_ids: tuple[int, ...]
    chunks: Any = None


class _Computer:
    """The model, its projector, and a context. Its slots keep the beginnings of earlier prompts."""

    def __init__(self, model: Path, projector: Path, params: llama.LlamaContextParams, config: EngineConfig) -> None:
        self._batch_size: int = params.n_batch
        self._context_window = config.context_window
        try:
            self._model = load_weights(model, config)
            self._context = llama.LlamaContext(self._model, params)
        except (OSError, RuntimeError, ValueError, MemoryError) as exc:
            raise EngineFailed(f"{model}: llama.cpp does not load it: {exc}") from exc
        self._projector = load_projector(projector, self._model, params.n_threads, is_on_device=config.gpu_layers > 0)
        self._kv_cache = SlotCache(self._context)
        self._slots = [_Slot(index) for index in range(params.n_seq_max)]
        self._batch = llama.LlamaBatch(n_tokens=self._batch_size, embd=0, n_seq_max=1)
        self._adapters: dict[str, Any] = {}  # key to adapter
        self._ticks = itertools.count(1)
        if config.gpu_layers:
            self._warm_up()

    def _warm_up(self) -> None:
        """Have the device compile its kernels, as `warm_up` does, and those of the projector.

        Raises:
            EngineFailed: the device failed.
        """
        try:
            warm_up(self._context, len(self._slots), self._context_window)
            chunks = self._chunks(*_SMALL_IMAGE, bytes(3 * math.prod(_SMALL_IMAGE)))
            if chunks.total_tokens <= self._context_window:
                self._projector.eval_chunks(self._context, chunks, 0, 0, self._batch_size, False)
                self._kv_cache.clear()
        except (RuntimeError, ValueError) as exc:
            raise EngineFailed(f"llama.cpp failed in its first steps: {exc}") from exc

    def compute(self, work: _Work, pictures: Sequence[Picture]) -> _Answer:
        pieces = list(self._pieces(work.request.prompt_token_ids, iter(pictures)))
        request = _expanded(work.request, pieces, self._context_window)
        token_ids = tuple(itertools.chain.from_iterable(piece.token_ids for piece in pieces))
        while not pieces[-1].chunks:
            pieces.pop()  # the runtime computes the text behind the last image
        adapter = "" if work.adapter is None else work.adapter.key
        slot = self._claim_slot(pieces, (adapter, request.params.cache_salt))
        num_cached = len(slot.token_ids)
        self._apply(work.adapter)
        counts = ImageCounts()
        end = 0
        for piece in pieces:
            end += len(piece.token_ids)
            if len(slot.token_ids) < end:
                started_s = time.monotonic()
                self._evaluate(piece, slot, end)
                if piece.chunks is not None:
                    counts = counts.plus(ImageCounts(1, len(piece.token_ids), time.monotonic() - started_s))
        return request, ComputedPrompt(token_ids, end, num_cached, self._kv_cache.read(slot.index)), counts

    def _pieces(self, token_ids: Sequence[int], pictures: Iterator[Picture]) -> Iterator[_Piece]:
        for is_image, places in itertools.groupby(token_ids, lambda token_id: token_id == IMAGE_PLACE):
            if is_image:
                yield from (self._image(next(pictures)) for _ in places)
            else:
                yield _Piece(tuple(places))

    def _image(self, picture: Picture) -> _Piece:
        pixels = picture.tobytes()
        chunks = self._chunks(picture.width, picture.height, pixels)
        # All tokens of an image have one number, and no token of the vocabulary has it: equal images are found again.
        digest = hashlib.blake2b(pixels, digest_size=16, salt=b"%dx%d" % picture.size).digest()
        return _Piece((IMAGE_PLACE - 1 - int.from_bytes(digest),) * chunks.total_tokens, chunks)

    def _chunks(self, width: int, height: int, pixels: bytes) -> Any:
        bitmap = llama.MtmdBitmap.create_image(width, height, pixels)
        return self._projector.tokenize(self._projector.marker, [bitmap], False, True)

    def _claim_slot(self, pieces: Sequence[_Piece], family: tuple[str, str]) -> _Slot:
        """Return a slot with the longest known beginning of the pieces; it holds nothing else."""
        token_ids = list(itertools.chain.from_iterable(piece.token_ids for piece in pieces))

        def num_common(slot: _Slot) -> int:
            num_tokens = num_common_tokens(slot.token_ids, token_ids) if slot.family == family else 0
            return num_tokens if self._kv_cache.can_trim(slot.index, num_tokens, is_copied=True) else 0

        source = max(self._slots, key=num_common)
        num_kept = num_common(source)
        slot = source
        if num_kept < len(source.token_ids):  # another prompt may go on with the rest
            slot = min(self._slots, key=lambda each: each.last_used)
        if slot is not source:
            self._kv_cache.load(slot.index, self._kv_cache.read(source.index))
        self._kv_cache.trim(slot.index, num_kept)
        slot.token_ids, slot.family, slot.last_used = token_ids[:num_kept], family, next(self._ticks)
        return slot

    def _evaluate(self, piece: _Piece, slot: _Slot, end: int) -> None:
        """Compute the tokens of a piece that the slot does not have; `end` is the piece's end in the prompt."""
        if piece.chunks is not None:
            self._projector.eval_chunks(
                self._context, piece.chunks, len(slot.token_ids), slot.index, self._batch_size, False
            )
            slot.token_ids += piece.token_ids
            return
        for token_ids in itertools.batched(piece.token_ids[len(slot.token_ids) - end :], self._batch_size):
            self._batch.clear()
            for position, token_id in enumerate(token_ids, len(slot.token_ids)):
                self._batch.add(token_id, position, [slot.index], False)
            self._context.decode(self._batch)
            slot.token_ids += token_ids

    def _apply(self, adapter: Adapter | None) -> None:
        if adapter is not None and adapter.key not in self._adapters:
            self._adapters[adapter.key] = self._model.lora_adapter_init(str(adapter.path))
        self._context.set_adapters_lora([] if adapter is None else [(self._adapters[adapter.key], 1.0)])


def _expanded(request: EngineRequest, pieces: Sequence[_Piece], context_window: int) -> EngineRequest:
    """Return a request with the true number of tokens.

    Raises:
        PromptTooLong: it does not fit the context window.
    """
    token_ids = [max(token_id, IMAGE_PLACE) for piece in pieces for token_id in piece.token_ids]
    max_tokens = fitting_max_tokens(request.params, len(token_ids), context_window, "images")
    return replace(request, prompt_token_ids=tuple(token_ids), max_tokens=max_tokens)
