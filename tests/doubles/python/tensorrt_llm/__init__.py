"""A TEST DOUBLE of TensorRT-LLM, which cannot be installed without a GPU. It is no part of Conch.

Signatures, enumerations and classes are read from the contract of one release in tests/data: of 1.2.1, or of the one
that TENSORRT_LLM_CONTRACT names. Whatever it does not record is refused, and what it records as uncertain too. The
behaviours that it describes are in `_executor`. The model is real: a Llama in numpy, on the weights that the model's
folder holds.
"""

from tensorrt_llm._contract import contract
from tensorrt_llm._llm import TorchLLM as LLM
from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
__version__ = contract()["version"]
