"""A double of TensorRT-LLM's script of this name: see recorded_tool.py."""

import sys
from pathlib import Path

BIN = Path(__file__).parents[2]
sys.path.insert(0, str(BIN.parents[2]))

from tests.doubles.bin.recorded_tool import convert  # noqa: E402

if __name__ == "__main__":
    convert(
        str(Path(__file__).relative_to(BIN)),
        {"LlamaForCausalLM", "Qwen2ForCausalLM", "Gemma2ForCausalLM"},
        model_dir="model_dir",
        output_dir="output_dir",
        tp_size="tp_size",
        pp_size="pp_size",
    )
