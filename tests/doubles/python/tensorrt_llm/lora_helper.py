"""How adapters are set up."""

from tensorrt_llm._contract import recorded_class

LoraConfig = recorded_class("tensorrt_llm.lora_helper.LoraConfig")

__all__ = ["LoraConfig"]
