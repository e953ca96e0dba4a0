"""The engine: one thread that owns a runtime, and around it what ends, shapes and delivers every sequence."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from model_repository.engine import delivery_streams
from model_repository.engine.adapter_folder import Adapter
from model_repository.engine.delivery_stream import DeliveredSequence, DeliveryResponder
from model_repository.engine.delivery_streams import DeliveryStreams
from model_repository.engine.early_cancels import EarlyCancels
from model_repository.engine.emitter import Emitter
from model_repository.engine.runtime import EngineConfig, Runtime, StepOutput
from model_repository.engine.sequence import EngineSequence, Responder
from model_repository.engine.silence_probes import SilenceProbes
from model_repository.engine.tally import Tally
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import (
    DeliveriesNotOpen,
    EngineFailed,
    InternalError,
    InvalidRequest,
    Overloaded,
    StageError,
    Unloading,
)
from model_repository.fair_pool import FairPool
from model_repository.stage_messages import EngineRequest, EngineStats, Release

logger = logging.getLogger(__name__)

# A step that hangs must not keep the process from ending.
CLOSE_TIMEOUT_S = 5.0
_NUM_GRAMMAR_THREADS = 2


class Engine:
    """Runs requests on a runtime, many at a time, and answers each through its responder.

    `submit`, `cancel_key`, `cancel_sequence` and `stats` may be called from any thread and return at once.

    Args:
        config: what the runtime was started with.
        runtime: what produces tokens; the engine's thread owns it from here on.
        byte_table: the bytes of each token id.
        clock: monotonic seconds.
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
        self._runtime = runtime
        self._byte_table = byte_table
        self._emitter = emitter
        self._clock = clock
        self._epoch = secrets.randbits(48)
        # No number comes again after a reload, when old ones may still be on their way through the other stages.
        self._numbers = itertools.count(secrets.randbits(56) + 1)
        self._sequences: dict[int, EngineSequence] = {}
        self._numbers_by_key: dict[str, int] = {}
        self._streams = DeliveryStreams(self._cancel_stream, clock)
        self._early_cancels = EarlyCancels(clock)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_closing = False
        self.is_draining = False  # any thread may say so; whatever comes is served all the same
        self._step_started_s: float | None = None
        self._tally = Tally()
        self._probes = SilenceProbes(clock)
        self._grammar_threads = FairPool(_NUM_GRAMMAR_THREADS)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread after the step in progress, fail what is running, and close the runtime."""
        self._is_closing = True
        self._grammar_threads.close()
        self._post(lambda: None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():  # the process ends without it
            logger.error("the step in progress did not end within %g s", CLOSE_TIMEOUT_S)

    # --- called from any thread ---------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, responder: Responder, request_id: str = "") -> None:
        """Queue a request; its answer goes to the responder.

        Args:
            request_id: what logs call it.

        Raises:
            EngineFailed: nobody is there to answer it.
            TooManyGrammars: its sender has too many that wait to be compiled.
        """
        self._check_alive()
        if request.guide is None and not request.bad_words:
            self._post(lambda: self._admit(request, responder, request_id))
        else:
            self._grammar_threads.submit(request.sender, lambda: self._prepare(request, responder, request_id))

    def open_deliveries(self, key: str, responder: DeliveryResponder) -> None:
        """Open a stream of deliveries for the requests that name this key; its first delivery is empty.

        Raises:
            EngineFailed: nobody is there to deliver anything.
        """
        self._check_alive()
        self._post(lambda: self._streams.open(next(self._numbers), key, responder))

    def cancel_key(self, key: str) -> None:
        """Cancel the request with this cancel key, also when it arrives only later."""
        arrived_s = self._clock()
        self._post(lambda: self._cancel_key(key, arrived_s))

    def cancel_sequence(self, number: int) -> None:
        """Cancel a sequence by the number in its releases, or all sequences of a stream by that in its deliveries."""
        arrived_s = self._clock()
        self._post(lambda: self._cancel(number, arrived_s))

    def fail_running(self) -> None:
        """End all that is running or waiting with an error: the model is being unloaded, and its time is up."""
        self._post(lambda: self._fail_all(Unloading("the model is being unloaded")))

    def fail_streams(self) -> None:
        """End the same and all streams of deliveries: what they go through on their way has been unloaded."""
        self._post(self._fail_streams)

    def between_steps[Result](self, work: Callable[[Runtime], Result]) -> Future[Result]:
        """Have the engine's thread do something to the runtime, between two steps.

        Raises:
            EngineFailed: its thread has ended.
        """
        self._check_alive()
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(work(self._runtime))
            except Exception as exc:
                future.set_exception(exc)

        self._post(run)
        return future

    def adapters(self) -> Mapping[str, Adapter]:
        """Return the LoRA adapters that requests may name.

        Raises:
            EngineFailed: the runtime is broken.
        """
        return self._runtime.stats().adapters

    def stats(self) -> EngineStats:
        """Return what the engine is doing now.

        Raises:
            EngineFailed: its thread has ended, or its runtime is broken, so it does nothing.
        """
        self._check_alive()
        held = self._runtime.stats()
        step_started_s = self._step_started_s
        return EngineStats(
            epoch=self._epoch,
            num_active=held.num_active,
            num_waiting=held.num_waiting,
            num_cells_used=held.num_cells_used,
            num_cells=held.num_cells,
            num_streams=len(self._streams),
            num_deliveries=self._streams.num_deliveries,
            num_delivered=self._streams.num_delivered,
            step_age_ms=0.0 if step_started_s is None else (self._clock() - step_started_s) * 1e3,
            adapters={name: adapter.source for name, adapter in held.adapters.items()},
            adapter_bytes=held.adapter_bytes,
            num_unloading=self._num_unloading(held.adapters),
            is_draining=self.is_draining,
            **dataclasses.asdict(self._tally),
        )

    def _prepare(self, request: EngineRequest, responder: Responder, request_id: str) -> None:
        """Compile a request's constraint and queue the request. No other sequence waits for the thread of this."""
        try:
            if self._is_closing:
                raise EngineFailed("the engine is shutting down")
            constraint = self._runtime.prepare(request)
        except BaseException as exc:  # a panic in Rust code too
            if not isinstance(exc, StageError):
                logger.exception("the runtime did not compile a guide request_id=%s", request_id)
            with contextlib.suppress(Exception):  # one that cannot be told must not end the thread
                responder.fail(exc if isinstance(exc, StageError) else InternalError())
        else:
            self._post(lambda: self._admit(request, responder, request_id, constraint))

    def _num_unloading(self, adapters: Mapping[str, Adapter]) -> int:
        names = [sequence.request.lora_name for sequence in list(self._sequences.values())]
        return sum(bool(name) and name not in adapters for name in names)

    def _post(self, message: Callable[[], None]) -> None:
        self._inbox.put(message)
        self._runtime.wake()

    def _check_alive(self) -> None:
        if self._thread.ident is not None and not self._thread.is_alive():
            raise EngineFailed("the engine's thread has ended")

    # --- the engine's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._take_turn()
                except BaseException:  # a panic in Rust code is no Exception
                    logger.exception("the engine's turn failed; every running request is ended")
                    self._fail_all(InternalError("the engine failed"))
            self._read_inbox(wait=False)
            closing = EngineFailed("the engine is shutting down")
            self._fail_all(closing)
            self._streams.fail(closing)
        finally:  # also where the thread dies: the memory is for the next engine
            self._runtime.close()

    def _take_turn(self) -> None:
        """Handle what has arrived, step the runtime once, deliver what is due. Sleeps while there is nothing to do."""
        self._read_inbox(wait=not self._runtime.has_work)
        if self._runtime.has_work:
            for output in self._step():
                self._take(output)
            self._release()
        else:
            self._step_started_s = None  # whatever was waited for is not wanted any more
        self._streams.deliver()
        self._streams.tend(
            lambda: {sequence.stream for sequence in self._sequences.values()}, is_draining=self.is_draining
        )
        self._probe()

    def _read_inbox(self, *, wait: bool) -> None:
        try:
            if wait:
                # Sequences without work have all been delivered: there is nothing to wake up for but the inbox, and
                # streams whose readers may be gone.
                self._inbox.get(timeout=delivery_streams.PROBE_INTERVAL_S if self._streams else None)()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            return

    def _step(self) -> Sequence[StepOutput]:
        if self._step_started_s is None:
            self._step_started_s = self._clock()
        try:
            outputs = self._runtime.step()
        except EngineFailed as error:
            logger.exception("the runtime failed; every running request is ended")
            self._fail_all(error)
            return ()
        if outputs is None:  # it goes on
            return ()
        self._step_started_s = None
        self._tally.step(outputs)
        return outputs

    def _take(self, output: StepOutput) -> None:
        sequence = self._sequences.get(output.sequence)
        if sequence is None or sequence.finish_reason is not None:
            return  # a step brought more tokens than the sequence wanted
        if output.error is not None:
            self._fail(sequence, output.error)
            return
        sequence.take(output, self._clock())
        if sequence.finish_reason is not None:
            self._runtime.free(sequence.number)  # its cells are free before its last text leaves

    def _release(self) -> None:
        now_s = self._clock()
        waiting = [item for sequence in self._sequences.values() if (item := sequence.waiting()) is not None]
        for key in self._emitter.due(waiting, now_s):
            sequence = self._sequences[key]
            release = sequence.next_release(now_s)  # while it is known, so that a failure here reaches it too
            if release.finish_reason is not None:
                self._forget(sequence)
                self._tally.num_finished += 1
                logger.info("%s", sequence.outcome())
            self._send(sequence, release)

    def _probe(self) -> None:
        for sequence in self._probes.due(self._sequences.values()):
            self._send(sequence, Release(sequence=sequence.number))

    def _send(self, sequence: EngineSequence, release: Release) -> None:
        """Deliver a release. A request whose delivery fails must not take the others with it."""
        try:
            sequence.responder.send(release)
        except Exception:
            logger.exception(
                "sequence %d: a response could not be sent, it is cancelled request_id=%s",
                sequence.number,
                sequence.request_id,
            )
            self._cancel(sequence.number, self._clock())

    def _admit(
        self,
        request: EngineRequest,
        responder: Responder,
        request_id: str,
        constraint: TokenConstraint | None = None,
    ) -> None:
        with contextlib.suppress(Exception):  # one that cannot be told must not take the others with it
            try:
                is_answered = self._take_in(request, responder, request_id, constraint)
            except StageError as error:
                responder.fail(error)
            except BaseException:  # a panic in Rust code too
                logger.exception("the runtime did not take a request request_id=%s", request_id)
                responder.fail(InternalError())
            else:
                if not is_answered:
                    responder.close()

    def _take_in(
        self, request: EngineRequest, responder: Responder, request_id: str, constraint: TokenConstraint | None
    ) -> bool:
        """Return whether the request's own responder is the one that will be told of what it releases.

        Raises:
            StageError: it is refused.
        """
        if self._early_cancels.take(request.cancel_key):
            self._tally.num_cancelled += 1
            return False
        if request.cancel_key in self._numbers_by_key:
            raise InvalidRequest("it names another request, which has not ended yet", "cancel_key")
        stream = self._streams.find(request.delivery_key) if request.delivery_key else None
        self._check_room()
        sequence = EngineSequence(
            next(self._numbers),
            request,
            responder if stream is None else DeliveredSequence(stream, request.delivery_number),
            stream=None if stream is None else stream.number,
            byte_table=self._byte_table,
            eos_token_ids=self._config.eos_token_ids,
            now_s=self._clock(),
            request_id=request_id,
        )
        self._runtime.submit(sequence.number, request, constraint)
        self._sequences[sequence.number] = sequence
        if request.cancel_key:
            self._numbers_by_key[request.cancel_key] = sequence.number
        if stream is not None:
            stream.take(request.delivery_number, sequence.number)
        return stream is None

    def _check_room(self) -> None:
        held = self._runtime.stats()  # which counts as waiting whom its next step will let in
        if held.num_active + held.num_waiting >= self._config.max_sequences + self._config.max_waiting:
            raise Overloaded(f"{self._config.max_waiting} requests are waiting already")

    def _cancel_key(self, key: str, arrived_s: float) -> None:
        if key in self._numbers_by_key:
            self._cancel(self._numbers_by_key[key], arrived_s)
        else:
            self._early_cancels.add(key)

    def _cancel(self, number: int, arrived_s: float) -> None:
        if number in self._streams:
            self._streams.end(number, arrived_s)
            return
        sequence = self._sequences.get(number)
        if sequence is None:  # finished meanwhile
            return
        self._runtime.free(number)
        self._forget(sequence)
        self._tally.cancelled(self._clock() - arrived_s)
        logger.info("%s", sequence.outcome())
        with contextlib.suppress(Exception):  # it may be the one that could not be sent to
            sequence.responder.close()

    def _cancel_stream(self, number: int, arrived_s: float) -> None:
        for sequence in [item.number for item in self._sequences.values() if item.stream == number]:
            self._cancel(sequence, arrived_s)

    def _forget(self, sequence: EngineSequence) -> None:
        del self._sequences[sequence.number]
        self._numbers_by_key.pop(sequence.request.cancel_key, None)

    def _fail_all(self, error: StageError) -> None:
        self._step_started_s = None
        sequences = list(self._sequences.values())
        for sequence in sequences:
            self._tell(sequence, error)
        self._streams.deliver()
        for sequence in sequences:  # last: a runtime that cannot even free them must not keep them from being told
            self._runtime.free(sequence.number)

    def _fail_streams(self) -> None:
        self._fail_all(EngineFailed("what it is delivered through was unloaded"))
        self._streams.fail(DeliveriesNotOpen("what it goes through was unloaded"))

    def _fail(self, sequence: EngineSequence, error: StageError) -> None:
        self._runtime.free(sequence.number)
        self._tell(sequence, error)

    def _tell(self, sequence: EngineSequence, error: StageError) -> None:
        self._forget(sequence)
        logger.warning("sequence %d failed: %s request_id=%s", sequence.number, error.code, sequence.request_id)
        with contextlib.suppress(Exception):  # one that cannot be told must not keep the others from being told
            sequence.responder.fail(error)
