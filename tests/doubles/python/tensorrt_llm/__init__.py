"""A TEST DOUBLE of TensorRT-LLM 1.2.1, which cannot be installed without a GPU. It is no part of Conch.

Signatures, enumerations and classes are read from tests/data/tensorrt_llm_contract.json, and whatever that does not
record is refused, and what it records as uncertain too. The behaviours that it describes are in `_executor`. The model
is real: a Llama in numpy, on the weights that the model's folder holds.
"""

from tensorrt_llm._llm import TorchLLM as LLM
from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
__version__ = "1.2.1"
