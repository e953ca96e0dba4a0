"""The ensemble's inputs read as a generation request: checked by the contract, and complete."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from model_repository import contract
from model_repository.contract import TensorSpec
from model_repository.errors import InvalidRequest, Unsupported
from model_repository.generation import (
    ContextOverflow,
    GenerationRequest,
    Guide,
    GuideKind,
    Mirostat,
    SamplingParams,
)
from model_repository.prompt_reading import read_prompt
from model_repository.tensors import Tensors, number, numbers, scalar, text, texts

DEFAULT_MAX_TOKENS = 16
# A grammar in llguidance's own dialect may keep its compiler busy without an end: only ours are known not to.
_GUIDE_KINDS = tuple(kind for kind in GuideKind if kind is not GuideKind.LARK)


def tensors_to_request(tensors: Tensors) -> GenerationRequest:
    """Return the request that a client's tensors describe, complete and within the contract's ranges.

    Raises:
        InvalidRequest: a value breaks a rule of the contract.
        Unsupported: an input of NVIDIA's ensemble that we cannot honour has a value that would change the result.
    """
    for spec in contract.NEUTRAL_INPUTS:
        _refuse_unless_neutral(spec, tensors)
    is_echo = not scalar(tensors, contract.EXCLUDE_INPUT_IN_OUTPUT, True)
    max_tokens = int(number(tensors, contract.MAX_TOKENS, DEFAULT_MAX_TOKENS))
    if max_tokens == 0 and not is_echo:
        rule = f"must be at least 1, unless {contract.EXCLUDE_INPUT_IN_OUTPUT.name} is false"
        raise InvalidRequest(f"0 {rule}", contract.MAX_TOKENS.name)
    return GenerationRequest(
        prompt=read_prompt(tensors),
        max_tokens=max_tokens,
        sampling=_read_sampling(tensors),
        overflow=_read_word(tensors, contract.CONTEXT_LENGTH_EXCEEDED_BEHAVIOR, tuple(ContextOverflow))
        or ContextOverflow.TRUNCATE,
        stop=_read_words(tensors, contract.STOP_WORDS, contract.MAX_STOP_WORDS),
        bad_words=_read_bad_words(tensors),
        stop_token_ids=tuple(numbers(tensors, contract.STOP_TOKEN_IDS)),
        include_stop=bool(scalar(tensors, contract.INCLUDE_STOP_STR_IN_OUTPUT, False)),
        ignore_eos=bool(scalar(tensors, contract.IGNORE_EOS, False)),
        min_tokens=_read_min_tokens(tensors, max_tokens),
        is_echo=is_echo,
        num_logprobs=_read_num_logprobs(tensors),
        has_token_ids=bool(scalar(tensors, contract.RETURN_TOKEN_IDS, False)),
        has_usage=bool(scalar(tensors, contract.RETURN_USAGE, False)),
        has_timing=bool(scalar(tensors, contract.RETURN_PERF_METRICS, False)),
        guide=_read_guide(tensors),
        sender=text(tensors, contract.SENDER),
        lora_name=text(tensors, contract.LORA_NAME),
        images=tuple(tensors[contract.IMAGES.name].reshape(-1).tolist()) if contract.IMAGES.name in tensors else (),
        is_stream=bool(scalar(tensors, contract.STREAM, False)),
        stream_interval_ms=_read_stream_interval_ms(tensors),
        priority=int(number(tensors, contract.PRIORITY, 0)),
        cancel_key=text(tensors, contract.CANCEL_KEY),
        delivery_key=text(tensors, contract.DELIVERY_KEY),
        delivery_number=int(scalar(tensors, contract.DELIVERY_NUMBER, 0)),
    )


def _read_sampling(tensors: Tensors) -> SamplingParams:
    drawing = (
        contract.TEMPERATURE,
        contract.TOP_P,
        contract.TOP_K,
        contract.MIN_P,
        contract.MIROSTAT_TARGET,
        contract.MIROSTAT_LR,
    )
    is_greedy = not any(spec.name in tensors for spec in drawing)
    return SamplingParams(
        temperature=number(tensors, contract.TEMPERATURE, 0.0 if is_greedy else 1.0),
        top_p=number(tensors, contract.TOP_P, 1.0),
        top_k=max(0, int(number(tensors, contract.TOP_K, 0))),
        min_p=number(tensors, contract.MIN_P, 0.0),
        repetition_penalty=number(tensors, contract.REPETITION_PENALTY, 1.0),
        presence_penalty=number(tensors, contract.PRESENCE_PENALTY, 0.0),
        frequency_penalty=number(tensors, contract.FREQUENCY_PENALTY, 0.0),
        logit_bias=_read_logit_bias(tensors),
        mirostat=_read_mirostat(tensors),
        seed=int(scalar(tensors, contract.SEED, 0)) if contract.SEED.name in tensors else secrets.randbits(64),
    )


def _read_logit_bias(tensors: Tensors) -> Mapping[int, float]:
    token_ids = numbers(tensors, contract.LOGIT_BIAS_TOKEN_IDS)
    values = numbers(tensors, contract.LOGIT_BIAS_VALUES)
    if len(token_ids) != len(values):
        rule = f"{len(values)} values for {len(token_ids)} token ids: there must be one for each"
        raise InvalidRequest(rule, contract.LOGIT_BIAS_VALUES.name)
    return dict(zip(token_ids, values, strict=True))


def _read_mirostat(tensors: Tensors) -> Mirostat | None:
    if contract.MIROSTAT_TARGET.name not in tensors and contract.MIROSTAT_LR.name not in tensors:
        return None
    default = Mirostat()
    return Mirostat(
        target=number(tensors, contract.MIROSTAT_TARGET, default.target),
        learning_rate=number(tensors, contract.MIROSTAT_LR, default.learning_rate),
    )


def _read_words(tensors: Tensors, spec: TensorSpec, max_words: int) -> tuple[str, ...]:
    words = tuple(word for word in texts(tensors, spec) if word)
    if len(words) > max_words:
        raise InvalidRequest(f"{len(words)} texts: there may be {max_words}", spec.name)
    return words


def _read_bad_words(tensors: Tensors) -> tuple[str, ...]:
    words = _read_words(tensors, contract.BAD_WORDS, contract.MAX_BAD_WORDS)
    longest = max(map(len, words), default=0)
    if longest > contract.MAX_BAD_WORD_CHARS:
        rule = f"a text of {longest} characters: it may have {contract.MAX_BAD_WORD_CHARS}"
        raise InvalidRequest(rule, contract.BAD_WORDS.name)
    return words


def _read_min_tokens(tensors: Tensors, max_tokens: int) -> int:
    min_tokens = int(number(tensors, contract.MIN_TOKENS, 0))
    if min_tokens > max_tokens:
        raise InvalidRequest(f"{min_tokens} must be at most max_tokens, {max_tokens}", contract.MIN_TOKENS.name)
    return min_tokens


def _read_num_logprobs(tensors: Tensors) -> int | None:
    num_top = int(number(tensors, contract.TOP_LOGPROBS, 0))
    if scalar(tensors, contract.RETURN_LOG_PROBS, False):
        return num_top
    if num_top:
        raise InvalidRequest(f"needs {contract.RETURN_LOG_PROBS.name} to be true", contract.TOP_LOGPROBS.name)
    return None


def _read_stream_interval_ms(tensors: Tensors) -> int | None:
    spec = contract.STREAM_INTERVAL_MS
    if spec.name not in tensors:
        return None
    interval_ms = int(number(tensors, spec, 0))
    if not scalar(tensors, contract.STREAM, False):
        raise InvalidRequest(f"needs {contract.STREAM.name} to be true", spec.name)
    return interval_ms


def _read_guide(tensors: Tensors) -> Guide | None:
    kind = _read_word(tensors, contract.GUIDED_DECODING_GUIDE_TYPE, _GUIDE_KINDS)
    content = text(tensors, contract.GUIDED_DECODING_GUIDE)
    if kind is None:
        if content:
            rule = f"needs {contract.GUIDED_DECODING_GUIDE_TYPE.name}"
            raise InvalidRequest(rule, contract.GUIDED_DECODING_GUIDE.name)
        return None
    if kind is GuideKind.JSON_OBJECT and content:
        rule = f"{kind} takes none: the type for a schema is {GuideKind.JSON_SCHEMA}"
        raise InvalidRequest(rule, contract.GUIDED_DECODING_GUIDE.name)
    if kind is not GuideKind.JSON_SCHEMA and contract.GUIDED_DECODING_STRICT.name in tensors:
        raise InvalidRequest(f"goes with {GuideKind.JSON_SCHEMA} only", contract.GUIDED_DECODING_STRICT.name)
    return Guide(kind, content, is_strict=bool(scalar(tensors, contract.GUIDED_DECODING_STRICT, True)))


def _read_word[Word: (ContextOverflow, GuideKind)](
    tensors: Tensors, spec: TensorSpec, words: tuple[Word, ...]
) -> Word | None:
    value = text(tensors, spec)
    if not value:
        return None
    for word in words:
        if word == value:
            return word
    raise InvalidRequest(f"{value!r} must be one of {', '.join(words)}", spec.name)


def _refuse_unless_neutral(spec: TensorSpec, tensors: Tensors) -> None:
    if spec.name not in tensors or spec.neutral is None:
        return
    for value in tensors[spec.name].reshape(-1).tolist():
        if value not in spec.neutral:
            shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            accepted = " or ".join(
                repr(item.decode()) if isinstance(item, bytes) else str(item) for item in spec.neutral
            )
            raise Unsupported(f"{shown!r} is not supported, only {accepted} is", spec.name)
