"""Checks a request against the capabilities of this model and its runtime."""

from __future__ import annotations

from collections.abc import Collection

from model_repository.capabilities import Capability, callable_tools, needed_capabilities
from model_repository.contract.request import GenerationRequest
from model_repository.contract.spec import set_fields
from model_repository.errors import Unsupported

# The input to blame for a missing capability; other capabilities have the names of their inputs.
BLAMED_INPUTS = {
    Capability.LOGIT_BIAS: "logit_bias_token_ids",
    Capability.MIROSTAT: "mirostat_target",
    Capability.LOGPROBS: "return_log_probs",
    Capability.STRUCTURED_OUTPUT: "guided_decoding_guide_type",
    Capability.LORA: "lora_name",
}


# Of Params: those of the request itself, not of its completion. A health check has max_tokens for every model.
_OF_EMBEDDINGS = frozenset(
    {
        "cache_salt",
        "cancel_key",
        "has_timing",
        "has_token_ids",
        "has_usage",
        "is_stream",
        "max_tokens",
        "priority",
        "sender",
        "truncate_prompt_tokens",
    }
)


def check_embedding(request: GenerationRequest) -> None:
    """Refuse values that only a completion has.

    Raises:
        Unsupported: names the first such input.
    """
    names = [
        field.specs[0].name
        for field, _ in set_fields(request.params)
        if field.specs and field.attribute not in _OF_EMBEDDINGS
    ]
    if request.params.sampling.temperature not in (0, 1):  # 0: a gRPC client's request without sampling inputs
        names.append("temperature")
    if names:
        raise Unsupported("this model has no completions", names[0])


def check_capabilities(request: GenerationRequest, capabilities: Collection[str], runtime: str) -> None:
    """Refuse values that the runtime cannot honour.

    Raises:
        Unsupported: names the first such input.
    """
    for capability in needed_capabilities(request):
        if capability not in capabilities:
            # Calls of tools are a structured output, too.
            is_from_tools = capability is Capability.STRUCTURED_OUTPUT and callable_tools(request.prompt) is not None
            is_of_prompt = capability is Capability.LOGPROBS and not request.params.has_logprobs
            blamed = "prompt_logprobs" if is_of_prompt else BLAMED_INPUTS.get(capability, capability)
            field = "tools" if is_from_tools else blamed
            is_of_model = capability is Capability.IMAGES  # the runtime may read images with another model
            rule = "this model reads none" if is_of_model else f"this model's runtime, {runtime}, cannot honour it"
            raise Unsupported(rule, field)
