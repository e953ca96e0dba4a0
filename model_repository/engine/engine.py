"""The engine: one thread that owns a runtime, and ends, shapes and sends the sequences."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from model_repository.contract.marks import united
from model_repository.contract.output import EngineStats, RuntimeState
from model_repository.contract.request import EngineRequest
from model_repository.contract.rules import check_declared, prompt_too_long
from model_repository.engine import output_streams
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.counts import EngineCounts
from model_repository.engine.emitter import Emitter
from model_repository.engine.inbox import (
    Arrival,
    CancelKey,
    Close,
    EndStream,
    FailRunning,
    FailStreams,
    Inbox,
    Message,
    OpenStream,
    SetAdapter,
    Submit,
)
from model_repository.engine.intake import Intake
from model_repository.engine.output_streams import OutputSender, OutputStreams
from model_repository.engine.runtime import EngineConfig, Runtime, StepOutput
from model_repository.engine.sequence import EngineSequence
from model_repository.errors import (
    EngineFailed,
    InternalError,
    InvalidRequest,
    NotFinite,
    OutputStreamNotOpen,
    Overloaded,
    PromptTooLong,
    StageError,
    Unloading,
    stage_error,
)

logger = logging.getLogger(__name__)

# A hanging step must not keep the process alive.
CLOSE_TIMEOUT_S = 5.0
_MAX_SENDER_WAIT_S = 0.04
# Steps that the engine may make while a batch is sent: then it waits, so that clients get few tokens at once. Fast ones
# may be more.
_MAX_STEPS_AHEAD, _MAX_FAST_STEPS_AHEAD = 7, 15
_FAST_STEP_S = 0.001


class Engine:
    """Runs requests on a runtime, many at a time, and sends their outputs to output streams.

    `post` and `stats` may be called from any thread and return at once.

    Args:
        runtime: owned by the engine's thread from here on; see Runtime for what other threads may call.
    """

    def __init__(
        self,
        config: EngineConfig,
        runtime: Runtime,
        byte_table: Sequence[bytes],
        *,
        emitter: Emitter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self.runtime = runtime
        self._byte_table = byte_table
        self._emitter = emitter
        self._clock = clock
        self._epoch = secrets.randbits(48)
        self._numbers = itertools.count(1)  # sequence numbers
        self._sequences: dict[int, EngineSequence] = {}
        self._numbers_by_key: dict[str, int] = {}
        self.inbox = Inbox(runtime.wake)
        self._sender = OutputSender(on_failure=lambda number: self.inbox.put(EndStream(number)))
        self._streams = OutputStreams(clock, self._sender)
        self._intake = Intake(runtime, self._streams, self.inbox, clock)
        self._num_steps_ahead = 0  # since the sender's batch was made
        self._ahead_since_s = 0.0  # when it was made
        self._is_closing = False
        self.is_draining = False  # set by any thread; new requests are still served
        self._step_started_s: float | None = None
        self._counts = EngineCounts()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._sender.start()
        self._thread.start()

    def close(self) -> None:
        """Stop the thread after the step in progress, fail the running requests, and close the runtime."""
        self._intake.close()
        self.inbox.put(Close())
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():  # the process ends without waiting for it
            logger.error("the step in progress did not end within %g s", CLOSE_TIMEOUT_S)

    # --- called from any thread ---------------------------------------------------------------------------------

    def post(self, message: Message) -> None:
        """Send a message to the engine's thread.

        Raises:
            EngineFailed: the thread has ended.
        """
        self._check_alive()
        self.inbox.put(message)

    def stats(self, *, has_marks: bool = False) -> EngineStats:
        """Return the engine's current state, with the marks of what it keeps if they are wanted.

        Raises:
            EngineFailed: the engine's thread has ended, or its runtime is broken.
        """
        self._check_alive()
        runtime = self.runtime.stats()
        step_started_s = self._step_started_s
        return EngineStats(
            epoch=self._epoch,
            num_images=runtime.images.num_images,
            num_image_tokens=runtime.images.num_tokens,
            image_s=runtime.images.passed_s,
            num_streams=len(self._streams),
            num_output_batches=self._sender.num_batches,
            num_output_items=self._sender.num_items,
            step_age_ms=0.0 if step_started_s is None else (self._clock() - step_started_s) * 1e3,
            adapters={name: adapter.source for name, adapter in runtime.adapters.items()},
            num_unloading=self._num_unloading(runtime.adapters),
            is_draining=self.is_draining,
            kept_marks=united(self.runtime.kept_marks()) if has_marks else b"",
            **{name: getattr(runtime, name) for name in RuntimeState.__struct_fields__},
            **dataclasses.asdict(self._counts),
        )

    def _num_unloading(self, adapters: Mapping[str, Adapter]) -> int:
        names = [sequence.request.params.lora_name for sequence in list(self._sequences.values())]
        return sum(bool(name) and name not in adapters for name in names)

    def _check_alive(self) -> None:
        if self._thread.ident is not None and not self._thread.is_alive():
            raise EngineFailed("the engine's thread has ended")

    # --- the engine's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._run_once()
                except BaseException:  # a panic in Rust code is not an Exception
                    logger.exception("the engine failed; every running request is ended")
                    self._fail_all(InternalError("the engine failed"))
            self._read_inbox(wait=False)
            closing = EngineFailed("the engine is shutting down")
            self._fail_all(closing)
            self._streams.fail(closing, closing)
            self._sender.close(CLOSE_TIMEOUT_S)
        finally:  # even if the thread dies: the next engine needs the memory
            self.runtime.close()

    def _run_once(self) -> None:
        """Read the inbox, step the runtime once, and send the due outputs. Without work, sleep until a message."""
        self._read_inbox(wait=not self.runtime.has_work)
        self._streams.flush()  # refusals do not wait for a step
        if self.runtime.has_work and not self._is_closing:
            for output in self._step():
                self._record(output)
            self._collect_due()
        else:
            self._step_started_s = None  # the requests of an unfinished step are cancelled
        self._streams.flush()
        self._streams.check_readers(
            lambda: {sequence.stream.number for sequence in self._sequences.values()}, is_draining=self.is_draining
        )

    def _read_inbox(self, *, wait: bool) -> None:
        # Without work all outputs are sent. Only messages and silent streams need the thread.
        idle_s = output_streams.CHECK_INTERVAL_S if self._streams else None
        for message in self.inbox.read(idle_s if wait else 0.0):
            match message:
                case Submit(batch, responder):
                    for arrival in self._intake.receive(batch, responder):
                        self._start(arrival)
                case Arrival():
                    self._intake.finish(message)
                    self._start(message)
                case OpenStream(key, responder):
                    self._streams.open(key, responder)
                case CancelKey(key, arrived_s) if key in self._numbers_by_key:
                    self._cancel(self._numbers_by_key[key], arrived_s)
                case CancelKey(key):
                    self._intake.cancel(key)
                case EndStream(number, arrived_s):
                    for sequence in [each for each in self._sequences.values() if each.stream.number == number]:
                        self._cancel(sequence.number, arrived_s)
                    self._streams.end(number)
                case FailRunning():
                    self._fail_all(Unloading("the model is being unloaded"))
                case FailStreams():
                    self._fail_all(EngineFailed("a stage on the way of its output was unloaded"))
                    on_stream = OutputStreamNotOpen("a stage on its way was unloaded")
                    self._streams.fail(on_stream, EngineFailed("a stage was unloaded"))
                case SetAdapter():
                    self._set_adapter(message)
                case Close():
                    self._is_closing = True

    def _step(self) -> Sequence[StepOutput]:
        if self._is_far_ahead():
            self._sender.wait_until_idle(_MAX_SENDER_WAIT_S)
        if self._step_started_s is None:
            self._step_started_s = self._clock()
        try:
            outputs = self.runtime.step()
        except EngineFailed as error:
            logger.exception("the runtime failed; every running request is ended")
            self._fail_all(error)
            return ()
        if outputs is None:  # the step goes on
            return ()
        self._step_started_s = None
        if outputs:
            self._counts.step(outputs)
        return outputs

    def _is_far_ahead(self) -> bool:
        """Whether the engine has made enough steps since the sender's batch."""
        num_steps = self._num_steps_ahead
        if num_steps < _MAX_STEPS_AHEAD:
            return False
        is_fast = self._clock() - self._ahead_since_s < num_steps * _FAST_STEP_S
        return num_steps >= (_MAX_FAST_STEPS_AHEAD if is_fast else _MAX_STEPS_AHEAD)

    def _record(self, output: StepOutput) -> None:
        sequence = self._sequences.get(output.sequence)
        if sequence is None or sequence.finish_reason is not None:
            return  # the step drew more tokens than the sequence needed
        if (error := output.checked()) is not None:
            self.runtime.free(sequence.number, is_reusable=not isinstance(error, NotFinite))
            self._fail(sequence, error)
            return
        sequence.add_output(output, self._clock())
        if sequence.finish_reason is not None:
            self.runtime.free(sequence.number)  # the last text is sent later

    def _collect_due(self) -> None:
        """Move the due tokens to their streams."""
        waiting = [item for sequence in self._sequences.values() if (item := sequence.pending_output()) is not None]
        goes_on = self.runtime.has_work
        if goes_on and any(each.is_held for each in waiting):
            self._num_steps_ahead += 1
        else:
            self._num_steps_ahead, self._ahead_since_s = 0, self._clock()
        for key in self._emitter.due(waiting, self._clock(), may_hold=goes_on):
            sequence = self._sequences[key]
            output = sequence.vector() or sequence.next_delta()
            if output.finish_reason is not None:
                self._forget(sequence)
                self._counts.num_finished += 1
                self._log(sequence)
            sequence.stream.add(sequence.item, output)

    def _start(self, arrival: Arrival) -> None:
        """Queue a request at the runtime, or refuse it on its stream."""
        stream, request_id = arrival.stream, arrival.request.request_id
        try:
            if arrival.error is not None:
                raise arrival.error
            self._start_sequence(arrival)
        except StageError as error:
            if not stream.is_single:  # a single request's responder logs the refusal
                stage_error(error, request_id)
            stream.fail(arrival.item, error)
        except BaseException:  # a panic in Rust code too
            logger.exception("the runtime failed on a new request request_id=%s", request_id)
            stream.fail(arrival.item, InternalError())

    def _start_sequence(self, arrival: Arrival) -> None:
        """Queue a request at the runtime, unless it is already cancelled.

        Raises:
            StageError: the request is refused.
        """
        request, stream, item = arrival.request, arrival.stream, arrival.item
        cancel_key = request.params.cancel_key
        if not stream.is_open or self._intake.take_cancel(cancel_key):
            self._counts.num_cancelled += 1
            stream.drop(item)
            return
        if cancel_key in self._numbers_by_key:
            raise InvalidRequest("names another request, which has not ended yet", "cancel_key")
        check_declared(request.params)
        self._check_length(request)
        self._check_room()
        sequence = EngineSequence(
            next(self._numbers),
            request,
            stream=stream,
            item=item,
            byte_table=self._byte_table,
            eos_token_ids=self._config.eos_token_ids,
            now_s=self._clock(),
        )
        self.runtime.submit(sequence.number, request, arrival.prepared)
        self._sequences[sequence.number] = sequence
        if cancel_key:
            self._numbers_by_key[cancel_key] = sequence.number
        stream.announce(item, request.ignored_keywords)

    def _check_length(self, request: EngineRequest) -> None:
        """Refuse a request that exceeds the context window: it could fail a runtime's whole batch."""
        window, num_tokens = self._config.context_window, len(request.prompt_token_ids)
        if num_tokens + request.max_tokens > window:
            sizes = f"{num_tokens} tokens, and the completion may have {request.max_tokens}"
            raise PromptTooLong(prompt_too_long(window, sizes), "prompt_token_ids")

    def _check_room(self) -> None:
        runtime = self.runtime.stats()  # a request that the next step admits still counts as waiting
        if runtime.num_active + runtime.num_waiting >= self._config.max_sequences + self._config.max_waiting:
            raise Overloaded(f"{self._config.max_waiting} requests are waiting already")

    def _set_adapter(self, order: SetAdapter) -> None:
        try:
            if order.adapter is None:
                self.runtime.unload_adapter(order.name)
            else:
                self.runtime.load_adapter(order.name, order.adapter)
        except Exception as exc:
            order.done.set_exception(exc)
        else:
            order.done.set_result(None)

    def _cancel(self, number: int, arrived_s: float) -> None:
        sequence = self._sequences[number]
        self.runtime.free(number)
        self._forget(sequence)
        self._counts.cancelled(self._clock() - arrived_s)
        self._log(sequence)
        sequence.stream.drop(sequence.item)

    def _log(self, sequence: EngineSequence) -> None:
        """Log the end of a request. A frontend logs its requests itself."""
        if sequence.stream.is_single:
            logger.info("%s", sequence.outcome())

    def _forget(self, sequence: EngineSequence) -> None:
        del self._sequences[sequence.number]
        self._numbers_by_key.pop(sequence.request.params.cancel_key, None)

    def _fail_all(self, error: StageError) -> None:
        self._step_started_s = None
        sequences = list(self._sequences.values())
        for sequence in sequences:
            self._fail(sequence, error)
        self._streams.flush()
        for sequence in sequences:  # last: clients get the error even if a broken runtime cannot free
            self.runtime.free(sequence.number)

    def _fail(self, sequence: EngineSequence, error: StageError) -> None:
        self._forget(sequence)
        logger.warning("sequence %d failed: %s request_id=%s", sequence.number, error.code, sequence.request.request_id)
        sequence.stream.fail(sequence.item, error)
