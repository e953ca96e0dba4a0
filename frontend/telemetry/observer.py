"""Tells metrics, log and traces of every request, once, when it has ended."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from aiohttp import web

from frontend import errors
from frontend.errors import APIError, ModelNotReady, NotFound
from frontend.request_context import CLIENT_CLOSED, RequestFacts
from frontend.settings import Settings
from frontend.stream_record import Completion, Rule, StreamRecord
from frontend.telemetry import definitions
from frontend.telemetry.definitions import UNKNOWN, Metric
from frontend.telemetry.log_lines import labels_text, log_fields
from frontend.telemetry.metrics import Metrics
from frontend.triton.endpoints import Endpoints
from model_repository.contract.output import EngineStats, FinishReason
from model_repository.contract.tensors import slug_to_model_id

logger = logging.getLogger("frontend.app")  # the name by which filters know the line of a request

_MAX_SHOWN_MODEL = 256  # characters of what a client calls a model, in the log
_SHED = (429, 503)
_SHED_CODES = sorted(
    {
        each.code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, APIError) and each.status in _SHED and each.code
    }
)
_CANCELLED, _ERROR = "cancelled", "error"  # how a completion ends that does not finish


class Tracer(Protocol):
    """Where the spans of requests go."""

    def begin(self, facts: RequestFacts, headers: Mapping[str, str]) -> None:
        """Give a request its place in a trace."""

    def end(self, facts: RequestFacts, *, method: str, endpoint: str, status: int) -> None:
        """Tell of a request."""

    def close(self) -> None:
        """Send what was not sent yet. It may block."""


class Observer:
    """What an application tells of its requests.

    Args:
        settings: whether keys are named, and metrics as vLLM does.
        tracer: None: there are no traces.
    """

    def __init__(self, settings: Settings, tracer: Tracer | None = None) -> None:
        self.metrics = Metrics()
        self.tracer = tracer
        self.has_vllm_names = settings.metrics_compat == "vllm"
        self._is_by_key = settings.metrics_by_key
        self._looked_at: dict[str, set[str]] = {}  # the models by endpoint
        for model in Endpoints.parse(settings.triton_endpoints).expected:
            self._begin_at_zero(model)

    def began_stream(self, facts: RequestFacts, record: StreamRecord) -> None:
        """Note that a request generates from here on."""
        facts.stream = record

    @contextlib.contextmanager
    def in_flight(self, model: str) -> Iterator[None]:
        """Count a request within the block."""
        self.metrics.count(definitions.IN_FLIGHT, model)
        try:
            yield
        finally:
            self.metrics.count(definitions.IN_FLIGHT, model, amount=-1)

    def ended(self, facts: RequestFacts, *, method: str, path: str, endpoint: str, status: int, level: int) -> None:
        """Tell of a request.

        Args:
            path: as the client wrote it.
            endpoint: the route.
            status: of the answer, 499 when nobody was there to read it.
            level: of the line in the log.
        """
        total_s = time.monotonic() - facts.started_at
        self._count(facts, endpoint, status)
        if facts.stream is not None:
            self._count_stream(facts, facts.stream, total_s)
        if self.tracer is not None:
            self.tracer.end(facts, method=method, endpoint=endpoint, status=status)
        if logger.isEnabledFor(level):
            self._log(facts, method, path, status, total_s, level)

    def looked_at(self, endpoint: str, model: str, seen: EngineStats | APIError) -> None:
        """Note what an engine says of itself at an endpoint, or why it does not."""
        known = self._looked_at.setdefault(endpoint, set())
        if model not in known:
            known.add(model)
            self._begin_at_zero(model)  # once more for another endpoint, which changes nothing
        gauges: dict[Metric, float] = {}
        match seen:
            case EngineStats():
                gauges = {
                    definitions.ENGINE_UP: 1,
                    definitions.RUNNING: seen.num_active,
                    definitions.WAITING: seen.num_waiting,
                    definitions.KV_CACHE_USAGE: seen.num_cells_used / max(1, seen.num_cells),
                    definitions.CANCEL_TO_FREE: seen.last_cancel_to_free_ms / 1000,
                }
            case ModelNotReady() | NotFound():  # it is not meant to be up
                gauges = dict.fromkeys((definitions.RUNNING, definitions.WAITING, definitions.KV_CACHE_USAGE), 0)
                gauges[definitions.ENGINE_UP] = math.nan
            case _:
                gauges = {definitions.ENGINE_UP: 0}
        for gauge, value in gauges.items():
            self.metrics.set(gauge, value, model, endpoint)

    def forget(self, endpoint: str) -> None:
        """Note that an endpoint is gone for good."""
        for model in tuple(self._looked_at.get(endpoint, ())):
            self.looked_at(endpoint, model, ModelNotReady("The endpoint is gone."))
        self._looked_at.pop(endpoint, None)

    def late(self, slug: str, request_id: str) -> None:
        """Note that something came of a completion after its finish, when its client had its whole answer."""
        rule = Rule.NOTHING_AFTER_THE_FINISH
        self.metrics.count(definitions.VIOLATIONS, slug_to_model_id(slug), rule)
        logger.error("a completion broke a rule: %s request_id=%s", rule, request_id)

    def _begin_at_zero(self, model: str) -> None:
        """Have what seldom happens be there before it does: to Prometheus, a series that begins at 1 has not grown."""
        self.metrics.count(definitions.IN_FLIGHT, model, amount=0)
        self.metrics.count(definitions.CANCELLED, model, amount=0)
        for rule in Rule:
            self.metrics.count(definitions.VIOLATIONS, model, rule, amount=0)
        for code in _SHED_CODES:
            self.metrics.count(definitions.SHED, model, code, amount=0)
        for outcome in (*FinishReason, _CANCELLED, _ERROR):
            self.metrics.count(definitions.COMPLETIONS, model, outcome, amount=0)

    def _count(self, facts: RequestFacts, endpoint: str, status: int) -> None:
        count, model = self.metrics.count, facts.served_model
        count(definitions.REQUESTS, model, endpoint, str(status))
        if facts.error_code == CLIENT_CLOSED:
            count(definitions.CANCELLED, model)
        elif facts.error is not None:
            code = type(facts.error).code or UNKNOWN  # the class's: those of single errors are many
            count(definitions.ERRORS, model, code)
            if facts.error.status in _SHED:
                count(definitions.SHED, model, code)
        if self._is_by_key:
            key = facts.caller.name
            count(definitions.KEY_REQUESTS, key)
            count(definitions.KEY_INPUT_TOKENS, key, amount=facts.num_input_tokens)
            count(definitions.KEY_OUTPUT_TOKENS, key, amount=facts.num_output_tokens)

    def _count_stream(self, facts: RequestFacts, record: StreamRecord, total_s: float) -> None:
        metrics, model = self.metrics, facts.served_model
        metrics.observe(definitions.REQUEST, total_s, model)
        metrics.observe(definitions.REQUEST_CHOICES, record.num_per_prompt, model)
        if record.gaps_s:
            metrics.add(definitions.INTER_TOKEN_LATENCY, record.gap_counts, record.gaps_s, model)
        if record.broken_rule is not None:
            metrics.count(definitions.VIOLATIONS, model, record.broken_rule)
        ttft_s = _ttft_s(facts, record)
        if ttft_s is not None:
            metrics.observe(definitions.TTFT, ttft_s, model)
        for index, completion in enumerate(record.completions):
            self._count_completion(facts, completion, is_first=index % record.num_per_prompt == 0)

    def _count_completion(self, facts: RequestFacts, completion: Completion, *, is_first: bool) -> None:
        metrics, model = self.metrics, facts.served_model
        metrics.count(definitions.COMPLETIONS, model, _outcome(facts, completion.finish_reason))
        metrics.observe(definitions.REQUEST_MAX_TOKENS, completion.request.params.max_tokens, model)
        usage, phases = completion.usage, completion.phases
        if usage is not None:
            metrics.observe(definitions.REQUEST_INPUT_TOKENS, usage.num_input_tokens, model)
            metrics.observe(definitions.REQUEST_OUTPUT_TOKENS, usage.num_output_tokens, model)
            metrics.count(definitions.OUTPUT_TOKENS, model, amount=usage.num_output_tokens)
            if is_first:  # the completions of one prompt share it, in the client's usage too
                metrics.count(definitions.INPUT_TOKENS, model, amount=usage.num_input_tokens)
                metrics.count(definitions.CACHED_TOKENS, model, amount=usage.num_cached_tokens)
        if phases is not None:
            metrics.observe(definitions.TOKENIZATION, phases.tokenization_s, model)
            metrics.observe(definitions.QUEUE, phases.queue_s, model)
            metrics.observe(definitions.PREFILL, phases.prefill_s, model)
            metrics.observe(definitions.DECODE, phases.decode_s, model)
            metrics.observe(definitions.INFERENCE, phases.prefill_s + phases.decode_s, model)
            if usage is not None and usage.num_output_tokens > 1:
                per_token_s = phases.decode_s / (usage.num_output_tokens - 1)
                metrics.observe(definitions.TIME_PER_OUTPUT_TOKEN, per_token_s, model)

    def _log(self, facts: RequestFacts, method: str, path: str, status: int, total_s: float, level: int) -> None:
        shown_model = facts.model[:_MAX_SHOWN_MODEL]
        log_fields(
            logger,
            level,
            _fields(facts, method, path, status, total_s) | {"model": shown_model},
            "%s %s request_id=%s id=%s key=%s model=%s status=%d error=%s"
            " input_tokens=%d output_tokens=%d ttft_ms=%s ms=%.0f%s",
            method,
            path,
            facts.request_id,
            facts.id,
            quote(facts.caller.name, safe="/:@+"),
            quote(shown_model, safe="/:@+"),
            status,
            facts.error_code or "-",
            facts.num_input_tokens,
            facts.num_output_tokens,
            "-" if facts.ttft_ms is None else f"{facts.ttft_ms:.0f}",
            total_s * 1000,
            labels_text(facts.labels),
        )


def _fields(facts: RequestFacts, method: str, path: str, status: int, total_s: float) -> dict[str, Any]:
    """Return the line of a request for machines. Neither prompts nor completions nor keys are ever in it."""
    fields: dict[str, Any] = {
        "event": "request",
        "method": method,
        "path": path,
        "request_id": facts.request_id,
        "id": facts.id,
        "key_name": facts.caller.name,
        "served_model": facts.served_model,
        "status": status,
        "error": facts.error_code,
        "input_tokens": facts.num_input_tokens,
        "output_tokens": facts.num_output_tokens,
        "ttft_ms": None if facts.ttft_ms is None else round(facts.ttft_ms, 3),
        "total_ms": round(total_s * 1000, 3),
        "labels": facts.labels,
    }
    if facts.trace_id:
        fields["trace_id"] = facts.trace_id
    record = facts.stream
    if record is not None:
        fields["stream"] = record.is_stream
        fields["finish_reasons"] = [completion.finish_reason for completion in record.completions]
        fields["cached_tokens"] = sum(each.usage.num_cached_tokens for each in record.completions if each.usage)
        if (phases := record.slowest) is not None:
            fields["tokenize_ms"] = round(phases.tokenization_s * 1000, 3)
            fields["queue_ms"] = round(phases.queue_s * 1000, 3)
            fields["prefill_ms"] = round(phases.prefill_s * 1000, 3)
            fields["decode_ms"] = round(phases.decode_s * 1000, 3)
    return fields


def _ttft_s(facts: RequestFacts, record: StreamRecord) -> float | None:
    """Return the time to the first token of all, also where it was told with the last one."""
    if facts.ttft_ms is None:
        return None
    phases = record.completions[0].phases
    decode_s = 0.0 if record.is_stream or phases is None else phases.decode_s
    return max(0.0, facts.ttft_ms / 1000 - decode_s)


def _outcome(facts: RequestFacts, reason: FinishReason | None) -> str:
    if reason is not None:
        return reason
    return _CANCELLED if facts.error_code == CLIENT_CLOSED else _ERROR


OBSERVER = web.AppKey("observer", Observer)
