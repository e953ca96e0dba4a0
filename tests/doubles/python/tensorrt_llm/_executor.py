"""The thread that steps all requests, and what the contract records of its behaviour.

- A step updates one sequence of a request, also where it has several (`n`).
- Finish reasons come with the end of the whole request.
- To abort a streaming request with log probabilities kills the process on the engine backend (issue 10810).
- Blocks of the KV cache are reused, and what is reused has no context logits.
- Processors of logits are what pickle makes of them, since requests travel to other processes.
- On the PyTorch backend they are called for each chunk of a prompt, and under its overlap scheduler they are told the
  last token one call late.
- A stream is told its first token, each so many of the others, and its end.
- Where CUDA graphs do not know adapters, only the prompt is computed under one.
- Each step leaves its statistics, on the PyTorch backend only if an option asks for it, and not in an engine that runs
  in the caller's process. A call that finds none waits for them in the caller's thread.
- An adapter is loaded with its first request. One that does not load ends the worker up to release 1.2, and fails its
  request in later ones.
- With max_utilization, and always with KV cache manager V2, a request starts as soon as its prompt has room in the KV
  cache. When the cache is full, the newest one is paused: it waits, and all its tokens are computed anew as a prompt.
  The token after that is drawn without processors of logits, and its native structured output begins again.
- A prompt longer than a chunk takes several steps. Where the contract does not trust aborts in prefill, one between two
  chunks leaves blocks for reuse as if the whole prompt had been computed.
- The PyTorch backend compiles kernels at the first sampled request, while all others wait.
- Up to release 1.2 an adapter that was loaded is kept for ever.
- A worker process beside it stands for the ranks: when it dies, everything fails.

Simplified: each sequence computes its own keys and values, so no fault of TensorRT-LLM's KV cache can show. A step of
any size takes the same time. Processors run in this process, after pickle; their logits are in memory that each step
spoils, as on a GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm._contract import contract
from tensorrt_llm._model import Model, State
from tensorrt_llm._results import RequestError, RequestOutput
from tensorrt_llm._sampler import Sampler, logprob_entry

WORKER = "tensorrt_llm_double_worker"  # the name of its process
EXIT_STATUS_OF_DEFECT = 134
ENDLESS_READS = "TENSORRT_LLM_DOUBLE_ENDLESS_READS"  # a variable: reads of statistics ignore their timeout, and say so
READ_WAITS, READ_RETURNS = (f"double: a read of statistics {what}\n" for what in ("waits", "returns"))

_STEP_S = 0.002  # at least
_COMPILE_S = 0.02  # of kernels: minutes on a GPU
_DEATHS = {-signal.SIGABRT: "CUDA error: an illegal memory access was encountered"}  # of the worker, by exit status
NUM_KV_TOKENS = 3200  # of the KV cache, unless max_tokens says so
_TOKENS_PER_BLOCK = 32


@dataclass(slots=True)
class _Sequence:
    state: State
    sampler: Sampler
    logits: Any  # of its next token, raw
    drawn: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    is_recomputed: bool = False


@dataclass(slots=True)
class Request:
    """One call of generate_async."""

    result: RequestOutput
    prompt: list[int]
    params: Any
    is_streaming: bool
    adapter: Path | None = None
    cache_salt: str | None = None
    priority: float = 0.5
    make_guide: Callable[[], Any] = lambda: None
    sequences: list[_Sequence] = field(default_factory=list)
    changes: list[Callable[[RequestOutput], None]] = field(default_factory=list)  # of the result, not told yet
    is_aborted: bool = False
    num_computed: int = 0  # tokens of the prompt

    @property
    def key(self) -> tuple[str, str]:
        """What requests must share to reuse blocks."""
        return str(self.adapter), self.cache_salt or ""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache for its tokens."""
        length = len(self.prompt) + sum(len(one.drawn) for one in self.sequences)
        return -(-length // _TOKENS_PER_BLOCK)

    def tell(self) -> None:
        """Hand the reader what has changed, as one update."""
        changes, self.changes = self.changes, []
        self.result.push(lambda result: _apply(result, changes))


class Executor:
    """Runs requests.

    Args:
        model: what computes.
        is_engine: this is the engine backend.
        max_batch_size: requests in one step.
        has_block_reuse: prompts that begin alike share blocks.
        max_chunk_tokens: tokens of a prompt for each call of the processors; None: all of them.
        is_told_late: processors are.
        has_stats: steps leave statistics.
        num_kv_tokens: tokens of the KV cache, as the statistics say.
        stream_interval: tokens between two updates of a stream.
        loses_adapters: CUDA graphs decode without them.
        has_pauses: requests are paused when the KV cache is full.
    """

    def __init__(
        self,
        model: Model,
        *,
        is_engine: bool,
        max_batch_size: int,
        has_block_reuse: bool,
        max_chunk_tokens: int | None = None,
        is_told_late: bool = False,
        has_stats: bool = False,
        num_kv_tokens: int | None = None,
        stream_interval: int = 1,
        loses_adapters: bool = False,
        has_pauses: bool = False,
    ) -> None:
        self.num_pauses = 0
        self.iteration_stats: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._has_stats = has_stats
        self._num_blocks = (num_kv_tokens or NUM_KV_TOKENS) // _TOKENS_PER_BLOCK
        self._model = model
        self._is_engine = is_engine
        self._max_batch_size = max_batch_size
        self._has_block_reuse = has_block_reuse
        self._max_chunk_tokens = max_chunk_tokens
        self._is_told_late = is_told_late
        self._stream_interval = stream_interval
        self._loses_adapters = loses_adapters
        self._has_pauses = has_pauses
        self.num_compilations = 0
        self.kept_adapters: set[Path] = set()
        # Under what, which tokens, and how many of them were computed.
        self._blocks: deque[tuple[tuple[str, str], tuple[int, ...], int]] = deque(maxlen=64)
        self._num_reused_blocks = self._num_missed_blocks = 0
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._ids = itertools.count(1)
        self._turns = itertools.count()
        self._is_shut_down = False
        self._condition = threading.Condition()
        self._worker = subprocess.Popen([WORKER], executable="/bin/cat", stdin=subprocess.PIPE)
        self._thread = threading.Thread(target=self._run, name="tensorrt-llm-double", daemon=True)
        self._thread.start()

    def next_id(self) -> int:
        """Return a number for a request."""
        return next(self._ids)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RuntimeError: the executor has shut down.
        """
        with self._condition:
            if self._is_shut_down or self._worker.poll() is not None:
                raise RuntimeError("LLM is shutting down")
            self._waiting.append(request)
            self._condition.notify()

    def is_healthy(self) -> bool:
        """Whether the worker lives."""
        return self._worker.poll() is None

    def abort(self, request: Request) -> None:
        """End a request in the next step."""
        has_logits = bool(request.params.logprobs)
        if self._is_engine and request.is_streaming and has_logits and not request.result.finished:
            os._exit(EXIT_STATUS_OF_DEFECT)
        request.is_aborted = True

    def fetch_stats(self, timeout_s: float | None) -> list[str]:
        """Return the statistics of all steps since the last call; if there are none, wait for them."""
        found: list[str] = []
        is_endless = ENDLESS_READS in os.environ and self.iteration_stats.empty()
        with contextlib.suppress(queue.Empty):
            if is_endless:
                sys.stderr.write(READ_WAITS)
            found.append(self.iteration_stats.get(timeout=None if is_endless else timeout_s or 0.0))
            if is_endless:
                sys.stderr.write(READ_RETURNS)
            while True:
                found.append(self.iteration_stats.get_nowait())
        return found

    def shutdown(self) -> None:
        """End the thread and the worker; may be called more than once."""
        with self._condition:
            self._is_shut_down = True
            self._condition.notify()
        self._thread.join()
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_shut_down or self._waiting or self._running)
                if self._is_shut_down:
                    return
                self._waiting.sort(key=lambda request: -request.priority)  # equals: the first
                if self._has_pauses:
                    self._pause()
                while self._waiting and self._starts(self._waiting[0]):
                    self._running.append(self._waiting.pop(0))
                requests = list(self._running)
            self._step(requests)

    def _starts(self, request: Request) -> bool:
        if len(self._running) >= self._max_batch_size:
            return False
        return not (self._has_pauses and self._running) or self._num_used() + request.num_blocks <= self._num_blocks

    def _num_used(self) -> int:
        return sum(each.num_blocks for each in self._running)

    def _pause(self) -> None:
        """Pause the newest requests while the cache has too little room; the oldest one always goes on."""
        while len(self._running) > 1 and self._num_used() > self._num_blocks:
            request = self._running.pop()
            for sequence in request.sequences:
                self.num_pauses += 1
                sequence.state = self._start(request)
                sequence.logits = sequence.state.feed([*request.prompt, *sequence.drawn])[-1]
                sequence.is_recomputed = True
                sequence.sampler.begin_again(_structured_output(request))
            self._waiting.insert(0, request)

    def _step(self, requests: list[Request]) -> None:
        began_s = time.monotonic()
        for request in requests:
            try:
                if self._worker.poll() is not None:
                    raise RuntimeError(_DEATHS.get(self._worker.returncode, "Executor worker died"))
                is_done = self._advance(request)
            except Exception as exc:
                request.result.push(exc)
                is_done = True
            if is_done:
                with self._condition:
                    self._running.remove(request)
        if self._has_stats:
            self._put_stats(time.monotonic() - began_s)
        time.sleep(max(0.0, began_s + _STEP_S - time.monotonic()))

    def _put_stats(self, step_s: float) -> None:
        num_paused = sum(bool(each.sequences) for each in self._waiting)
        stats = {
            "iterLatencyMS": step_s * 1e3,
            "numQueuedRequests": len(self._waiting),
            "kvCacheStats": self._cache_stats(),
            "inflightBatchingStats": {"numScheduledRequests": len(self._running), "numPausedRequests": num_paused},
            "specDecodingStats": None,
        }
        self.iteration_stats.put(json.dumps(stats))

    def _cache_stats(self) -> dict[str, int]:
        return {
            "usedNumBlocks": self._num_used(),
            "maxNumBlocks": self._num_blocks,
            "tokensPerBlock": _TOKENS_PER_BLOCK,
            "reusedBlocks": self._num_reused_blocks,
            "missedBlocks": self._num_missed_blocks,
        }

    def _advance(self, request: Request) -> bool:
        """Give one sequence of a request its next token; return whether the request is done."""
        if request.is_aborted:
            if not request.sequences and not contract()["facts"]["aborts_in_prefill"]["value"]:
                self._blocks.append((request.key, tuple(request.prompt), request.num_computed))
            request.changes.append(lambda result: _finish(result, ["cancelled"] * len(result.outputs)))
            request.tell()
            return True
        if not request.sequences:
            request.num_computed += self._max_chunk_tokens or len(request.prompt)
            if request.num_computed < len(request.prompt):
                return False
            self._prefill(request)
        unfinished = [index for index, item in enumerate(request.sequences) if item.finish_reason is None]
        index = unfinished[next(self._turns) % len(unfinished)]
        sequence = request.sequences[index]
        if not (self._is_engine or sequence.sampler.is_greedy or self.num_compilations):
            self.num_compilations += 1
            time.sleep(_COMPILE_S)
        raw = sequence.logits
        token_id = sequence.sampler.draw(raw, sequence.drawn, is_recomputed=sequence.is_recomputed)
        sequence.is_recomputed = False
        sequence.drawn.append(token_id)
        sequence.finish_reason = _finish_reason(request.params, sequence.drawn)
        if sequence.finish_reason is None:
            sequence.logits = sequence.state.feed([token_id])[-1]
        num_top = request.params.logprobs
        entry = logprob_entry(raw, num_top, token_id) if num_top else None
        request.changes.append(lambda result: _append(result, index, token_id, entry))
        is_done = all(item.finish_reason is not None for item in request.sequences)
        if is_done:
            reasons = [str(item.finish_reason) for item in request.sequences]
            request.changes.append(lambda result: _finish(result, reasons, cuts_end_id=not self._is_engine))
        num_drawn = sum(len(item.drawn) for item in request.sequences)
        if is_done or (request.is_streaming and (num_drawn == 1 or num_drawn % self._stream_interval == 0)):
            request.tell()
        return is_done

    def _prefill(self, request: Request) -> None:
        structured_outputs = [_structured_output(request) for _ in range(request.params.n)]
        # A salt of its own reuses nothing; what is reused is still computed here, but its logits are not shown.
        prompt = list(request.prompt)
        num_cached, num_filled = self._num_cached(request) if self._has_block_reuse else (0, 0)
        prompt[num_filled:num_cached] = [0] * (num_cached - num_filled)
        self._blocks.append((request.key, tuple(request.prompt), len(prompt)))
        self._num_reused_blocks += num_cached // _TOKENS_PER_BLOCK
        self._num_missed_blocks += -(-(len(request.prompt) - num_cached) // _TOKENS_PER_BLOCK)
        for number, structured_output in enumerate(structured_outputs):
            state = self._start(request)
            rows = state.feed(prompt)
            sampler = Sampler(
                request.params,
                request.prompt,
                is_engine=self._is_engine,
                structured_output=structured_output,
                request_id=number,
                is_told_late=self._is_told_late,
            )
            size = self._max_chunk_tokens
            for row in rows[size - 1 : -1 : size] if size else ():  # behind each chunk but the last one
                sampler.process(row.copy(), ())
            if self._loses_adapters and request.adapter is not None:
                state = self._model.start(None)
                state.feed(prompt)
            request.sequences.append(_Sequence(state, sampler, rows[-1]))
        params = request.params
        shown = torch.from_numpy(rows[num_cached:]) if params.return_context_logits or params.prompt_logprobs else None
        scores = [logprob_entry(row, params.prompt_logprobs) for row in rows] if params.prompt_logprobs else []

        def update(result: RequestOutput) -> None:
            result.cached_tokens = num_cached
            result.context_logits = shown
            for output in result.outputs:
                output.prompt_logprobs = scores

        request.changes.append(update)

    def _start(self, request: Request) -> State:
        if request.adapter is not None and contract()["facts"]["keeps_adapters"]["value"]:
            self.kept_adapters.add(request.adapter)
        try:
            return self._model.start(request.adapter)
        except Exception as exc:
            if not contract()["version"].startswith("1.2"):
                raise RequestError(f"Failed to load LoRA adapter: {exc}") from exc
            self._worker.kill()
            self._worker.wait()
            raise

    def _num_cached(self, request: Request) -> tuple[int, int]:
        """Return the number of tokens in known blocks, without the last one, and of the computed ones in them."""
        best = 0, 0
        for key, known, num_computed in self._blocks:
            if key == request.key:
                pairs = zip(known, request.prompt[:-1], strict=False)
                num_equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
                num_cached = num_equal // _TOKENS_PER_BLOCK * _TOKENS_PER_BLOCK
                best = max(best, (num_cached, min(num_cached, num_computed)))
        return best


def _structured_output(request: Request) -> Any:
    try:
        return request.make_guide()
    except ValueError as exc:
        raise RequestError(str(exc)) from exc


def _apply(result: RequestOutput, changes: list[Callable[[RequestOutput], None]]) -> None:
    for change in changes:
        change(result)


def _finish_reason(params: Any, drawn: list[int]) -> str | None:
    if (drawn[-1] == params.end_id and not params.ignore_eos) or drawn[-1] in (params.stop_token_ids or []):
        return "stop"
    return "length" if len(drawn) >= params.max_tokens else None


def _append(result: RequestOutput, index: int, token_id: int, entry: Any) -> None:
    output = result.outputs[index]
    output.num_before = len(output.token_ids)
    output.token_ids.append(token_id)
    if entry is not None:
        output.logprobs.append(entry)
        output.cumulative_logprob = (output.cumulative_logprob or 0.0) + entry[token_id].logprob


def _finish(result: RequestOutput, reasons: list[str], *, cuts_end_id: bool = False) -> None:
    params = result.sampling_params
    for output, reason in zip(result.outputs, reasons, strict=True):
        output.finish_reason = reason
        last = output.token_ids[-1] if output.token_ids else None
        if reason == "stop" and last in (params.stop_token_ids or []):
            output.stop_reason = last
            if not params.include_stop_str_in_output:
                del output.token_ids[-1]
        elif reason == "stop" and cuts_end_id:
            del output.token_ids[-1]
    result.finish()
