"""Checks a request against this model and its runtime: capabilities, and the context window."""

from __future__ import annotations

from collections.abc import Collection

from model_repository.capabilities import Capability, callable_tools, needed_capabilities
from model_repository.contract.request import ContextOverflow, GenerationRequest, Params
from model_repository.errors import InvalidRequest, PromptTooLong, Unsupported

# The input to blame for a missing capability; other capabilities have the names of their inputs.
BLAMED_INPUTS = {
    Capability.LOGIT_BIAS: "logit_bias_token_ids",
    Capability.MIROSTAT: "mirostat_target",
    Capability.LOGPROBS: "return_log_probs",
    Capability.STRUCTURED_OUTPUT: "guided_decoding_guide_type",
    Capability.LORA: "lora_name",
}


def check_capabilities(request: GenerationRequest, capabilities: Collection[Capability], runtime: str) -> None:
    """Refuse values that the runtime cannot honour.

    Raises:
        Unsupported: names the first such input.
    """
    for capability in needed_capabilities(request):
        if capability not in capabilities:
            # Calls of tools are a structured output, too.
            is_from_tools = capability is Capability.STRUCTURED_OUTPUT and callable_tools(request.prompt) is not None
            field = "tools" if is_from_tools else BLAMED_INPUTS.get(capability, capability)
            raise Unsupported(f"this model's runtime, {runtime}, cannot honour it", field)


def fitting_max_tokens(params: Params, num_prompt_tokens: int, context_window: int, field: str) -> int:
    """Return `max_tokens`, lowered to the room that the prompt leaves, if the request allows that.

    Args:
        field: the input that carries the prompt.

    Raises:
        PromptTooLong: the prompt leaves no room for one token, or not enough for a `max_tokens` that must not change.
        InvalidRequest: `min_tokens` do not fit.
    """
    room = context_window - num_prompt_tokens
    window = f"the context window is {context_window} tokens"
    if room < min(params.max_tokens, 1):
        rule = ", and the completion needs at least one" if params.max_tokens else ""
        raise PromptTooLong(f"the prompt has {num_prompt_tokens} tokens: {window}{rule}", field)
    if params.max_tokens > room and params.overflow is ContextOverflow.ERROR:
        sizes = f"the prompt has {num_prompt_tokens} tokens and the completion may have {params.max_tokens}"
        raise PromptTooLong(f"{sizes}: {window}", field)
    if params.min_tokens > room:
        rule = f"the prompt has {num_prompt_tokens} tokens, which leaves {room}"
        raise InvalidRequest(f"{params.min_tokens} do not fit: {window}, and {rule}", "min_tokens")
    return min(params.max_tokens, room)
