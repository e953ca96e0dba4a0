"""Engine requests as tests write them: fields of a request and of its parameters side by side."""

from __future__ import annotations

from typing import Any

import msgspec

from model_repository.contract.request import EngineRequest
from model_repository.structured_output.grammar import structured_output_to_grammar


def changed(request: EngineRequest, **fields: Any) -> EngineRequest:
    """Return the request with other fields; those that it has not itself are its parameters'.

    `num_logprobs` stands for the two parameters from which it is computed. A structured output brings its grammar.
    """
    if (output := fields.get("structured_output")) is not None and "grammar" not in fields:
        fields["grammar"] = structured_output_to_grammar(output)
    if "num_logprobs" in fields:
        fields |= {"has_logprobs": True, "num_top_logprobs": fields.pop("num_logprobs")}
    own = {name: value for name, value in fields.items() if name in EngineRequest.__struct_fields__}
    others = {name: value for name, value in fields.items() if name not in own}
    return msgspec.structs.replace(request, params=msgspec.structs.replace(request.params, **others), **own)
