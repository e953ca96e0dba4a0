"""The merge of options of a file with those of a command, as recorded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tensorrt_llm._contract import Recorded, contract, enumeration
from tensorrt_llm.llmapi import KvCacheConfig

if "WaitingQueuePolicy" in contract()["enums"]:
    WaitingQueuePolicy = enumeration("WaitingQueuePolicy")

_RECORDED = Recorded(f"{__name__}.update_llm_args_with_extra_dict")
_CACHE = Recorded("tensorrt_llm.llmapi.KvCacheConfig.__init__")


def update_llm_args_with_extra_dict(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return both, with objects made of dicts; those of kv_cache_config are merged."""
    bound = _RECORDED.bind(*args, **kwargs)
    llm_args, given = bound["llm_args"], bound["llm_args_dict"]
    if "kv_cache_config" in given:
        defaults = {name: param.default for name, param in _CACHE.signature.parameters.items()}
        ours = {name: value for name, value in vars(llm_args["kv_cache_config"]).items() if value != defaults[name]}
        given["kv_cache_config"] = KvCacheConfig(**ours | given["kv_cache_config"])
    if "decoding_type" not in given.get("speculative_config", {"decoding_type": ""}):
        raise ValueError("speculative_config needs decoding_type")
    # Later releases leave it to the argument model.
    if "speculative_config" in given and contract()["version"] == "1.2.1":
        kind = type(f"{given['speculative_config']['decoding_type']}DecodingConfig", (SimpleNamespace,), {})
        given["speculative_config"] = kind(**given["speculative_config"])
    merged: dict[str, Any] = llm_args | given
    return merged
