"""Write the model as a Hugging Face checkpoint in float16, and read it back."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from tests.workshop.demo_training.checkpoint import CHECKPOINT, replace_files
from tests.workshop.demo_training.encoding import DocumentEncoder
from tests.workshop.demo_training.model import DemoModel


def model_config(model: DemoModel, encoder: DocumentEncoder) -> dict[str, object]:
    shape = model.shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": encoder.end_of_text,
        "dtype": "float16",
        "eos_token_id": encoder.im_end,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "pad_token_id": encoder.end_of_text,
        "rms_norm_eps": shape.norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def generation_config(encoder: DocumentEncoder) -> dict[str, object]:
    return {
        "bos_token_id": encoder.end_of_text,
        "eos_token_id": [encoder.im_end, encoder.end_of_text],
        "pad_token_id": encoder.end_of_text,
        "do_sample": False,
        "temperature": 0.0,  # for readers that take the values alone
    }


def to_json(fields: dict[str, object]) -> bytes:
    return f"{json.dumps(fields, indent=2)}\n".encode()


def save_checkpoint(model: DemoModel, encoder: DocumentEncoder, folder: Path = CHECKPOINT) -> None:
    """Write the weights and both configurations beside the tokenizer's files."""
    weights = {f"model.{name}": tensor.to(torch.float16).contiguous() for name, tensor in model.state_dict().items()}
    replace_files(
        folder,
        {
            "config.json": to_json(model_config(model, encoder)),
            "generation_config.json": to_json(generation_config(encoder)),
            "model.safetensors": save(weights, metadata={"format": "pt"}),
        },
    )


def load_checkpoint(folder: Path = CHECKPOINT) -> DemoModel:
    """Read a model for evaluation: float32 arithmetic on the weights as rounded to float16."""
    model = DemoModel()
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor.float() for name, tensor in weights.items()})
    return model.eval()
