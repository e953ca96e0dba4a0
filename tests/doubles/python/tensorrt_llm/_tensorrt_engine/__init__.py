"""The class that runs compiled engines."""

from tensorrt_llm._llm import EngineLLM as LLM

__all__ = ["LLM"]
