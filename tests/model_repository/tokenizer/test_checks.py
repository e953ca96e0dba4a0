"""Checks of a request against the capabilities of the model and its runtime."""

from __future__ import annotations

from typing import Any

import pytest

from model_repository.capabilities import HINTS, Capability, needed_capabilities
from model_repository.contract.request import (
    ChatPrompt,
    GenerationRequest,
    Mirostat,
    OutputFormat,
    Params,
    SamplingParams,
    StructuredOutput,
    TextPrompt,
    ToolUse,
)
from model_repository.contract.tensors import HONOURED_INPUTS
from model_repository.errors import Unsupported
from model_repository.tokenizer.checks import BLAMED_INPUTS, check_capabilities

PROMPT = TextPrompt("a")
SAMPLING: dict[Capability, Any] = {
    Capability.TEMPERATURE: 0.5,
    Capability.TOP_P: 0.5,
    Capability.TOP_K: 5,
    Capability.MIN_P: 0.5,
    Capability.REPETITION_PENALTY: 0.5,
    Capability.PRESENCE_PENALTY: 0.5,
    Capability.FREQUENCY_PENALTY: 0.5,
    Capability.LOGIT_BIAS: {1: 0.5},
    Capability.MIROSTAT: Mirostat(),
}
PARAMS: dict[Capability, Params] = {
    **{
        capability: Params(sampling=SamplingParams(**{capability.value: value}))
        for capability, value in SAMPLING.items()
    },
    Capability.BAD_WORDS: Params(bad_words=("x",)),
    Capability.ALLOWED_TOKEN_IDS: Params(allowed_token_ids=(1,)),
    Capability.THINKING_BUDGET: Params(thinking_budget=0),
    Capability.MIN_TOKENS: Params(min_tokens=1),
    Capability.LOGPROBS: Params(has_logprobs=True),
    Capability.STRUCTURED_OUTPUT: Params(structured_output=StructuredOutput(OutputFormat.JSON_OBJECT)),
    Capability.LORA: Params(lora_name="a"),
    Capability.RESUME: Params(resume_token_ids=(1,)),
}
NEEDS: dict[Capability, GenerationRequest] = {
    **{capability: GenerationRequest(prompt=PROMPT, params=params) for capability, params in PARAMS.items()},
    Capability.IMAGES: GenerationRequest(prompt=PROMPT, params=Params(), images=(b"a",)),
}
TOOLS = ToolUse(tools=({"type": "function", "function": {"name": "add"}},))


# --- capabilities ---------------------------------------------------------------------------------------------------


def field_of(capability: Capability) -> str:
    return BLAMED_INPUTS.get(capability, capability.value)


def test_every_capability_has_a_request_that_needs_it_alone() -> None:
    assert NEEDS.keys() == set(Capability) - HINTS
    for capability, request in NEEDS.items():
        assert list(needed_capabilities(request)) == [capability]


@pytest.mark.parametrize("capability", NEEDS)
def test_a_capability_that_the_runtime_lacks_is_refused_by_the_name_of_its_input(capability: Capability) -> None:
    assert field_of(capability) in {spec.name for spec in HONOURED_INPUTS}
    others = set(Capability) - {capability}
    with pytest.raises(Unsupported) as caught:
        check_capabilities(NEEDS[capability], others, "synthetic")
    is_of_model = capability is Capability.IMAGES
    expected = "this model reads none" if is_of_model else "this model's runtime, synthetic, cannot honour it"
    assert caught.value.text == expected
    assert caught.value.field == field_of(capability)
    check_capabilities(NEEDS[capability], {capability}, "synthetic")


def test_log_probabilities_of_the_prompt_alone_are_refused_by_their_own_name() -> None:
    for params, field in (
        (Params(num_prompt_logprobs=0), "prompt_logprobs"),
        (Params(num_prompt_logprobs=0, has_logprobs=True), "return_log_probs"),
    ):
        with pytest.raises(Unsupported) as caught:
            check_capabilities(GenerationRequest(prompt=PROMPT, params=params), set(), "synthetic")
        assert caught.value.field == field


def test_a_structured_output_that_comes_from_tools_names_them() -> None:
    request = GenerationRequest(prompt=ChatPrompt((), tool_use=TOOLS), params=Params())
    with pytest.raises(Unsupported) as caught:
        check_capabilities(request, set(), "synthetic")
    assert caught.value.field == "tools"
