"""Adapters' settings, as releases after 1.2 have them."""

from tensorrt_llm._contract import recorded_class, require

require(__name__)
LoraConfig = recorded_class(f"{__name__}.LoraConfig")

__all__ = ["LoraConfig"]
