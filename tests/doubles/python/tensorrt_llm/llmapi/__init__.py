"""The classes around LLM, as far as the contract records them."""

from tensorrt_llm._contract import contract, enumeration, recorded_class
from tensorrt_llm._llm import TorchLLM as LLM
from tensorrt_llm._results import CompletionOutput, RequestError, RequestOutput
from tensorrt_llm.executor import LoRARequest
from tensorrt_llm.sampling_params import GuidedDecodingParams, SamplingParams

CapacitySchedulerPolicy = enumeration("CapacitySchedulerPolicy")
KvCacheConfig = recorded_class("tensorrt_llm.llmapi.KvCacheConfig")
SchedulerConfig = recorded_class("tensorrt_llm.llmapi.SchedulerConfig")
for _name in ("CudaGraphConfig", "DecodeCudaGraphConfig", "ExtendedRuntimePerfKnobConfig"):  # those of the release
    if f"tensorrt_llm.llmapi.{_name}.__init__" in contract()["callables"]:
        globals()[_name] = recorded_class(f"tensorrt_llm.llmapi.{_name}")
MpiCommSession = recorded_class("tensorrt_llm.llmapi.MpiCommSession")

__all__ = [
    "LLM",
    "CapacitySchedulerPolicy",
    "CompletionOutput",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "LoRARequest",
    "MpiCommSession",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
]
