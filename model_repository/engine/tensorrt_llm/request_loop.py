"""The thread of all requests to TensorRT-LLM: an event loop that starts, reads and aborts them.

A result chooses its kind of queue by the event loop of its creation, so all of its calls happen in one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorrt_llm.llmapi import RequestError

from model_repository.engine.grammar_budget import GrammarUse
from model_repository.engine.runtime import StepOutput
from model_repository.engine.tensorrt_llm.input_processor import InputProcessor
from model_repository.engine.tensorrt_llm.llm import queue_priority
from model_repository.engine.tensorrt_llm.options import Aborts
from model_repository.engine.tensorrt_llm.result_reader import ResultReader
from model_repository.errors import EngineFailed, InternalError, InvalidRequest, Overloaded, StageError

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 2.0
_HEALTH_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `generate_async`."""

    sequence: int
    keywords: Mapping[str, Any]
    make_sampling_params: Callable[[], Any]  # called late: the objects are large, and many calls may wait
    reader: ResultReader
    aborts: Aborts = Aborts.ALWAYS
    edits_logits: bool = False  # it has a logits processor
    shifts_rows: bool = False  # beside it, logits processors would get the logits of other calls
    logits_bytes: int = 0  # the machine's memory that the engine allocates as the call starts
    queue_order_s: float = 0.0  # the order of waiting calls
    grammar: GrammarUse | None = None  # counted until the call has ended

    def disturbs(self, other: Call) -> bool:
        return self.shifts_rows and other.edits_logits


class RequestLoop:
    """Runs calls; one other thread reads their outputs.

    Args:
        processor: processes the prompts; None: they are token ids.
    """

    def __init__(self, llm: Any, processor: InputProcessor | None = None) -> None:
        self._llm = llm
        self._processor = processor
        self._batches: queue.SimpleQueue[Sequence[StepOutput]] = queue.SimpleQueue()  # an empty one only wakes `wait`
        self._failure = ""  # the reason why TensorRT-LLM as a whole has ended
        self._outputs: list[StepOutput] = []  # outputs of this iteration of the loop
        self._results: dict[int, Any] = {}  # sequence to its result; dropped calls have none
        self._calls: dict[int, Call] = {}
        self._late_aborts: set[int] = set()  # dropped calls to abort at their first token
        self._tasks: set[asyncio.Task[Any]] = set()
        self._busy: dict[int, Call] = {}  # that have not ended, including dropped ones
        self._lock = threading.Lock()  # protects the busy calls
        self._num_scoring = 0
        self._started_s = time.monotonic()
        self._has_progressed = False  # since the last `pop_progress`
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tensorrt-llm-requests", daemon=True)
        self._thread.start()

    # --- called from other threads ------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that TensorRT-LLM still works.

        Raises:
            EngineFailed: it has failed as a whole.
        """
        if self._failure:
            raise EngineFailed(self._failure)

    def pop_progress(self) -> bool:
        """Return whether any call has progressed since the last time, including dropped ones."""
        has_progressed, self._has_progressed = self._has_progressed, False
        return has_progressed or self._num_scoring > 0

    def busy_calls(self) -> list[Call]:
        """Return the calls that have not ended, including dropped ones."""
        with self._lock:
            return list(self._busy.values())

    def start(self, call: Call) -> None:
        with self._lock:
            self._busy[call.sequence] = call
        self._loop.call_soon_threadsafe(self._start, call)

    def try_out(self, call: Call, timeout_s: float) -> None:
        """Run a call to its end, beside those of the engine. It has a sequence number that the engine never uses.

        Raises:
            StageError: it failed; Overloaded: it has not ended in time.
        """
        with self._lock:
            self._busy[call.sequence] = call
        future = asyncio.run_coroutine_threadsafe(self._try_out(call), self._loop)
        try:
            error = future.result(timeout_s)
        except TimeoutError as exc:
            future.cancel()
            raise Overloaded(f"TensorRT-LLM made no token in {timeout_s:g} s") from exc
        if error is not None:
            raise error

    def drop(self, sequence: int) -> None:
        """Stop reading a call, and abort it as soon as it may be."""
        self._loop.call_soon_threadsafe(self._drop, sequence)

    def wake(self) -> None:
        """Make `wait` return."""
        self._batches.put(())

    def wait(self, timeout_s: float) -> list[StepOutput]:
        """Return the available outputs: after a wake-up or a timeout an empty list.

        Raises:
            EngineFailed: TensorRT-LLM as a whole has failed.
        """
        outputs: list[StepOutput] = []
        with contextlib.suppress(queue.Empty):
            outputs += self._batches.get(timeout=timeout_s)
            while True:
                outputs += self._batches.get_nowait()
        self.check()
        return outputs

    def close(self) -> None:
        """End the thread; the LLM's own shutdown ends the remaining calls."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._processor is not None:
            self._processor.close()

    # --- the loop's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        if hasattr(self._llm, "_check_health"):
            self._check_health()
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    def _check_health(self) -> None:
        """Notice a dead worker within a second, also of an idle model, until there is one. The call does not wait.

        Source: TensorRT-LLM's pull requests 12718 and 16338. Before release 1.3 it does not see dead workers.
        """
        if self._llm._check_health():
            self._loop.call_later(_HEALTH_INTERVAL_S, self._check_health)
            return
        logger.error("TensorRT-LLM says that it no longer works")
        self._failure = "TensorRT-LLM no longer works: the model must be loaded again"
        self.wake()

    def _start(self, call: Call) -> asyncio.Task[StageError | None]:
        self._calls[call.sequence] = call
        task = self._loop.create_task(self._serve(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _drop(self, sequence: int) -> None:
        call, result = self._calls.pop(sequence, None), self._results.pop(sequence, None)
        if call is None or result is None or result.finished or call.aborts is Aborts.NEVER:
            return
        if call.aborts is Aborts.AFTER_PREFILL and not result.outputs[0].token_ids:
            self._late_aborts.add(sequence)
        else:
            result.abort()

    async def _try_out(self, call: Call) -> StageError | None:
        return await self._start(call)

    async def _serve(self, call: Call) -> StageError | None:
        """Run a call; return why it failed."""
        try:
            await self._call(call)
        except StageError as error:
            return self._fail(call, error)
        except RequestError as exc:
            logger.warning("sequence %d: TensorRT-LLM failed on it: %s", call.sequence, exc)
            return self._fail(call, EngineFailed("TensorRT-LLM failed on this request"))
        except Exception as exc:  # the executor or its worker has ended
            logger.exception("TensorRT-LLM failed")
            self._failure = f"TensorRT-LLM failed ({type(exc).__name__}): the model must be loaded again"
            return EngineFailed(self._failure)
        finally:
            with self._lock:
                del self._busy[call.sequence]
            self.wake()  # a request may wait for this place, and a failure must be reported
            self._drop(call.sequence)
            self._late_aborts.discard(call.sequence)
        return None

    def _fail(self, call: Call, error: StageError) -> StageError:
        self._emit(call, [StepOutput(call.sequence, error=error)])
        return error

    async def _call(self, call: Call) -> None:
        if call.sequence not in self._calls:
            return  # it was dropped at once
        while await self._generate(call):
            logger.debug("sequence %d: TensorRT-LLM has paused it; it goes on in another call", call.sequence)

    async def _generate(self, call: Call) -> bool:
        """Read one result; return whether a pause has spoiled it, so that another one must follow the tokens read."""
        try:
            keywords = {**call.keywords, "sampling_params": call.make_sampling_params()}
            if call.reader.given:
                keywords["inputs"] = [*keywords["inputs"], *call.reader.given]
            keywords |= queue_priority(call.queue_order_s - self._started_s)
            if self._processor is not None:
                keywords["inputs"] = await self._processor.process(keywords["inputs"], keywords["sampling_params"])
                if call.sequence not in self._calls:
                    return False
            result = self._llm.generate_async(**keywords)
        except (RequestError, TypeError, ValueError) as exc:  # a limit of the engine or of a parameter
            raise InvalidRequest(f"TensorRT-LLM refuses it: {exc}") from exc
        self._results[call.sequence] = result
        if call.keywords["streaming"]:
            async for _ in result:
                self._has_progressed = True
                if call.sequence in self._late_aborts:
                    self._late_aborts.remove(call.sequence)
                    result.abort()
                await self._read(call, result)
                if call.sequence in self._calls and call.reader.has_paused(result):
                    if call.aborts is not Aborts.NEVER and not result.finished:
                        result.abort()
                    return True
        else:
            await result
            await self._read(call, result)
        return False

    async def _read(self, call: Call, result: Any) -> None:
        if call.sequence not in self._calls:
            return
        try:
            if call.reader.can_score(result):
                await self._score(call, result)
                if call.sequence not in self._calls:
                    return
            outputs = call.reader.read(result)
        except Exception as exc:  # our own bug, which must not look like a failure of TensorRT-LLM
            logger.exception("sequence %d: its result could not be read", call.sequence)
            raise InternalError() from exc
        self._emit(call, outputs)

    async def _score(self, call: Call, result: Any) -> None:
        self._num_scoring += 1
        try:
            await asyncio.to_thread(call.reader.score, result, lambda: call.sequence in self._calls)
        finally:
            self._num_scoring -= 1

    def _emit(self, call: Call, outputs: Sequence[StepOutput]) -> None:
        """Gather outputs with those of the other requests in the same step of TensorRT-LLM."""
        if call.sequence not in self._calls:
            return
        if outputs and not self._outputs:
            self._loop.call_soon(self._flush)
        self._outputs += outputs

    def _flush(self) -> None:
        outputs, self._outputs = self._outputs, []
        self._batches.put(outputs)
