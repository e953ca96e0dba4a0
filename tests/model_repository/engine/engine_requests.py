"""Engine requests as tests write them: fields of a request and of its parameters side by side."""

from __future__ import annotations

from typing import Any

import msgspec

from model_repository.contract.request import EngineRequest


def changed(request: EngineRequest, **fields: Any) -> EngineRequest:
    """Return the request with other fields; those that it has not itself are its parameters'.

    `num_logprobs` stands for the two parameters from which it is computed.
    """
    if "num_logprobs" in fields:
        fields |= {"has_logprobs": True, "num_top_logprobs": fields.pop("num_logprobs")}
    own = {name: value for name, value in fields.items() if name in EngineRequest.__struct_fields__}
    others = {name: value for name, value in fields.items() if name not in own}
    return msgspec.structs.replace(request, params=msgspec.structs.replace(request.params, **others), **own)
