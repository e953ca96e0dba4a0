"""A double of TensorRT-LLM's converters, under each of their names: see recorded_tool.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.doubles.bin.recorded_tool import convert

CLASS_NAMES = {
    "llama": {"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"},
    "qwen": {"Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM"},
    "gemma": {"GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"},
    "deepseek_v2": {"DeepseekV2ForCausalLM"},
    "quantization": {"LlamaForCausalLM", "Qwen2ForCausalLM", "Gemma2ForCausalLM"},
}

if __name__ == "__main__":
    path = Path(__file__).as_posix()
    family, program = Path(path).parent.name, f"examples/{path.rpartition('/examples/')[2]}"
    names = {"model_dir": "model_dir", "output_dir": "output_dir", "tp_size": "tp_size", "pp_size": "pp_size"}
    if family == "gemma":
        names = {"model_dir": "model_dir", "output_dir": "output_model_dir", "tp_size": "world_size"}
    convert(program, CLASS_NAMES[family], **names)
