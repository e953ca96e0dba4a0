"""What a request asks against what this model and its runtime have: capabilities, the context window."""

from __future__ import annotations

from collections.abc import Collection

from model_repository import contract
from model_repository.capabilities import Capability, needed_capabilities
from model_repository.contract import TensorSpec
from model_repository.errors import InvalidRequest, PromptTooLong, Unsupported
from model_repository.generation import ContextOverflow, GenerationRequest

# The input to name where a runtime lacks something that is no hint.
BLAMED_INPUTS: dict[Capability, TensorSpec] = {
    Capability.TEMPERATURE: contract.TEMPERATURE,
    Capability.TOP_P: contract.TOP_P,
    Capability.TOP_K: contract.TOP_K,
    Capability.MIN_P: contract.MIN_P,
    Capability.REPETITION_PENALTY: contract.REPETITION_PENALTY,
    Capability.PRESENCE_PENALTY: contract.PRESENCE_PENALTY,
    Capability.FREQUENCY_PENALTY: contract.FREQUENCY_PENALTY,
    Capability.LOGIT_BIAS: contract.LOGIT_BIAS_TOKEN_IDS,
    Capability.MIROSTAT: contract.MIROSTAT_TARGET,
    Capability.MIN_TOKENS: contract.MIN_TOKENS,
    Capability.LOGPROBS: contract.RETURN_LOG_PROBS,
    Capability.BAD_WORDS: contract.BAD_WORDS,
    Capability.GUIDES: contract.GUIDED_DECODING_GUIDE_TYPE,
    Capability.LORA: contract.LORA_NAME,
    Capability.IMAGES: contract.IMAGES,
}


def check_capabilities(
    request: GenerationRequest, capabilities: Collection[Capability], runtime: str, *, has_tools: bool
) -> None:
    """Refuse what the runtime cannot honour.

    Args:
        request: with the guide that it will be answered under.
        capabilities: what the runtime can honour.
        runtime: its name.
        has_tools: the guide comes from the tools.

    Raises:
        Unsupported: names the first such input.
    """
    for capability in needed_capabilities(request):
        if capability not in capabilities:
            is_from_tools = capability is Capability.GUIDES and has_tools
            spec = contract.TOOLS if is_from_tools else BLAMED_INPUTS[capability]
            raise Unsupported(f"this model's runtime, {runtime}, cannot honour it", spec.name)


def fitting_max_tokens(request: GenerationRequest, num_prompt_tokens: int, context_window: int, field: str) -> int:
    """Return `max_tokens`, lowered to what the prompt leaves of the context window if the request agrees to that.

    Args:
        request: the request.
        num_prompt_tokens: of its prompt.
        context_window: tokens of prompt and completion together.
        field: the input that carries the prompt.

    Raises:
        PromptTooLong: the prompt leaves no room for one token, or not for `max_tokens` and the request does not agree.
        InvalidRequest: `min_tokens` do not fit.
    """
    room = context_window - num_prompt_tokens
    window = f"the context window is {context_window} tokens"
    if room < min(request.max_tokens, 1):
        rule = ", and the completion needs at least one" if request.max_tokens else ""
        raise PromptTooLong(f"the prompt has {num_prompt_tokens} tokens: {window}{rule}", field)
    if request.max_tokens > room and request.overflow is ContextOverflow.ERROR:
        sizes = f"the prompt has {num_prompt_tokens} tokens and the completion may have {request.max_tokens}"
        raise PromptTooLong(f"{sizes}: {window}", field)
    if request.min_tokens > room:
        rule = f"the prompt has {num_prompt_tokens} tokens, which leaves {room}"
        raise InvalidRequest(f"{request.min_tokens} do not fit: {window}, and {rule}", contract.MIN_TOKENS.name)
    return min(request.max_tokens, room)
