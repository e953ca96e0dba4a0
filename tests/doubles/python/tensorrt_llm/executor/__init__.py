"""What a request is made of."""

from pathlib import Path

from tensorrt_llm._contract import recorded_class
from tensorrt_llm._results import CompletionOutput

_Recorded = recorded_class("tensorrt_llm.executor.LoRARequest")


class LoRARequest(_Recorded):  # type: ignore[misc, valid-type]  # made from the contract
    """An adapter, which must be there."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if not Path(self.lora_path).exists() or not self.lora_path:
            raise ValueError(f"lora_path {self.lora_path!r} does not exist")


__all__ = ["CompletionOutput", "LoRARequest"]
