"""The class that runs compiled engines, up to release 1.2."""

from tensorrt_llm._contract import require
from tensorrt_llm._llm import EngineLLM as LLM

require(__name__)

__all__ = ["LLM"]
