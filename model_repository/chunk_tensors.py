"""Chunks of a completion to tensors and back, by the contract: a response carries only what its chunk says."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy.typing as npt

from model_repository import contract
from model_repository.contract import TensorSpec
from model_repository.generation import FinishReason, GenerationChunk, Timing, TokenLogprob, TopLogprob, Usage
from model_repository.tensors import Tensors, array, numbers, scalar, text

_NO_TOKEN = -1  # fills up the tokens' lists of the most likely ones where a token has none
_TIMES = (
    contract.ARRIVAL_TIME_NS,
    contract.FIRST_SCHEDULED_TIME_NS,
    contract.FIRST_TOKEN_TIME_NS,
    contract.LAST_TOKEN_TIME_NS,
)
_COUNTS = (contract.NUM_INPUT_TOKENS, contract.NUM_OUTPUT_TOKENS, contract.NUM_CACHED_TOKENS)


def chunk_to_tensors(chunk: GenerationChunk, *, cum_logprob: float | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the ensemble's outputs for a chunk, by name."""
    tensors = {contract.TEXT_OUTPUT.name: array(contract.TEXT_OUTPUT, chunk.text)}
    if chunk.usage is not None:
        tensors |= {spec.name: array(spec, getattr(chunk.usage, spec.name)) for spec in _COUNTS}
    if chunk.finish_reason is not None:
        tensors |= _last_tensors(chunk, cum_logprob)
    if chunk.num_prompt_tokens:
        tensors[contract.NUM_ECHOED_TOKENS.name] = array(contract.NUM_ECHOED_TOKENS, chunk.num_prompt_tokens)
    if chunk.token_ids:
        tensors[contract.TOKEN_IDS.name] = array(contract.TOKEN_IDS, *chunk.token_ids)
    if chunk.prompt_token_ids:
        tensors[contract.INPUT_TOKEN_IDS.name] = array(contract.INPUT_TOKEN_IDS, *chunk.prompt_token_ids)
    if chunk.logprobs:
        tensors |= _logprob_tensors(chunk.logprobs)
    return tensors


def _last_tensors(chunk: GenerationChunk, cum_logprob: float | None) -> dict[str, npt.NDArray[Any]]:
    outputs: list[tuple[TensorSpec, Any]] = [(contract.FINISH_REASON, chunk.finish_reason)]
    if chunk.stop_reason is not None:
        outputs.append((contract.STOP_REASON, json.dumps(chunk.stop_reason)))
    if chunk.timing is not None:
        outputs += [(spec, getattr(chunk.timing, spec.name)) for spec in _TIMES]
    if cum_logprob is not None:
        outputs.append((contract.CUM_LOG_PROBS, cum_logprob))
    return {spec.name: array(spec, value) for spec, value in outputs}


def _logprob_tensors(logprobs: tuple[TokenLogprob, ...]) -> dict[str, npt.NDArray[Any]]:
    num_top = max(len(item.top) for item in logprobs)
    missing = TopLogprob(_NO_TOKEN, b"", math.nan)
    top = [each for item in logprobs for each in (*item.top, *[missing] * (num_top - len(item.top)))]
    lists: dict[TensorSpec, list[Any]] = {
        contract.TOKEN_IDS: [item.token_id for item in logprobs],
        contract.TOKEN_BYTES: [item.token_bytes for item in logprobs],
        contract.OUTPUT_LOG_PROBS: [math.nan if item.logprob is None else item.logprob for item in logprobs],
    }
    if top:
        lists[contract.TOP_LOGPROB_TOKEN_IDS] = [item.token_id for item in top]
        lists[contract.TOP_LOGPROB_TOKEN_BYTES] = [item.token_bytes for item in top]
        lists[contract.TOP_LOGPROB_VALUES] = [item.logprob for item in top]
    return {spec.name: array(spec, *values) for spec, values in lists.items()}


def tensors_to_chunk(tensors: Tensors) -> GenerationChunk:
    """Return the chunk that the ensemble's outputs say."""
    chunk_text = text(tensors, contract.TEXT_OUTPUT)
    if len(tensors) == 1:  # by far the most frequent kind
        return GenerationChunk(text=chunk_text)
    finish_reason = text(tensors, contract.FINISH_REASON)
    stop_reason = text(tensors, contract.STOP_REASON)
    return GenerationChunk(
        text=chunk_text,
        token_ids=tuple(numbers(tensors, contract.TOKEN_IDS)),
        logprobs=_read_logprobs(tensors),
        prompt_token_ids=tuple(numbers(tensors, contract.INPUT_TOKEN_IDS)),
        num_prompt_tokens=int(scalar(tensors, contract.NUM_ECHOED_TOKENS, 0)),
        finish_reason=FinishReason(finish_reason) if finish_reason else None,
        stop_reason=json.loads(stop_reason) if stop_reason else None,
        usage=_read_usage(tensors),
        timing=_read_timing(tensors),
    )


def _read_usage(tensors: Tensors) -> Usage | None:
    if contract.NUM_INPUT_TOKENS.name not in tensors:
        return None
    return Usage(**{spec.name: int(scalar(tensors, spec, 0)) for spec in _COUNTS})


def _read_timing(tensors: Tensors) -> Timing | None:
    if contract.ARRIVAL_TIME_NS.name not in tensors:
        return None
    return Timing(**{spec.name: int(scalar(tensors, spec, 0)) for spec in _TIMES})


def _read_logprobs(tensors: Tensors) -> tuple[TokenLogprob, ...]:
    if contract.OUTPUT_LOG_PROBS.name not in tensors:
        return ()
    columns = zip(
        numbers(tensors, contract.TOKEN_IDS),
        tensors[contract.TOKEN_BYTES.name].reshape(-1).tolist(),
        numbers(tensors, contract.OUTPUT_LOG_PROBS),
        _read_top(tensors),
        strict=True,
    )
    return tuple(
        TokenLogprob(token_id, token_bytes, None if math.isnan(logprob) else logprob, top)
        for token_id, token_bytes, logprob, top in columns
    )


def _read_top(tensors: Tensors) -> list[tuple[TopLogprob, ...]]:
    num_tokens = tensors[contract.OUTPUT_LOG_PROBS.name].size
    if contract.TOP_LOGPROB_VALUES.name not in tensors:
        return [()] * num_tokens
    columns = zip(
        numbers(tensors, contract.TOP_LOGPROB_TOKEN_IDS),
        tensors[contract.TOP_LOGPROB_TOKEN_BYTES.name].reshape(-1).tolist(),
        numbers(tensors, contract.TOP_LOGPROB_VALUES),
        strict=True,
    )
    top = [TopLogprob(*column) for column in columns]
    num_top = len(top) // num_tokens
    rows = [top[start : start + num_top] for start in range(0, len(top), num_top)]
    return [tuple(item for item in row if item.token_id != _NO_TOKEN) for row in rows]
