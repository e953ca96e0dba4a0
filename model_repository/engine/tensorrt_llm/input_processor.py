"""TensorRT-LLM's input processor, which makes tokens and tensors of prompts with pictures, in a thread of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class InputProcessor:
    """Processes the prompts of a model that reads images, one after the other.

    A large picture takes about a tenth of a second. `generate_async` would process it in the thread of all requests,
    where no stream gets tokens meanwhile.
    """

    def __init__(self, llm: Any) -> None:
        self._thread = ThreadPoolExecutor(1, "tensorrt-llm-images")
        if not hasattr(llm, "preprocess"):  # release 1.2
            llm.input_processor = _StandIn(llm.input_processor)
            self._preprocess = llm.input_processor.preprocess
        else:
            self._preprocess = llm.preprocess

    async def process(self, inputs: Any, sampling_params: Any) -> Any:
        """Return the prompt as `generate_async` takes it without processing it again.

        Raises:
            TypeError, ValueError: the processor refuses the prompt.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._preprocess, inputs, sampling_params)

    def close(self) -> None:
        """End the thread after the prompt in progress."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class _ProcessedPrompt(dict[str, Any]):
    """A prompt, and the result of the input processor."""

    result: Any


class _StandIn:
    """Takes the place of `llm.input_processor`, and returns the results that the thread has computed.

    Source: `generate_async` in 1.2.1/_modules/tensorrt_llm/llmapi/llm.html (branch gh-pages). It passes on the prompt
    that it got.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def preprocess(self, inputs: Any, sampling_params: Any) -> _ProcessedPrompt:
        prompt = _ProcessedPrompt(inputs)
        prompt.result = self._processor(inputs, sampling_params)
        return prompt

    def __call__(self, inputs: _ProcessedPrompt, sampling_params: Any) -> Any:
        return inputs.result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)
