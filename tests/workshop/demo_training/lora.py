"""LoRA on the demo model: low-rank additions to its matrices, written and read in the format of PEFT.

Source: https://arxiv.org/abs/2106.09685, and the file names, keys and fields of https://github.com/huggingface/peft.
"""

import json
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from tests.workshop.demo_training.checkpoint import replace_files
from tests.workshop.demo_training.model import DemoModel, Layer

RANK = 8
SCALE = 2
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
KEY_PREFIX = "base_model.model.model."
BASE_MODEL = "build_engines/demo/checkpoint"


class LoraLinear(nn.Module):
    """A frozen matrix, and the trained product of two thin ones beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)  # at the start the model is its base

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x) + self.lora_B(self.lora_A(x)) * SCALE
        return output


def add_lora(model: DemoModel, rank: int = RANK) -> DemoModel:
    """Freeze the model and put an untrained adapter beside each matrix of its layers."""
    model.requires_grad_(False)
    for layer in model.layers:
        for block in (cast(Layer, layer).self_attn, cast(Layer, layer).mlp):
            for name in TARGETS:
                if hasattr(block, name):
                    setattr(block, name, LoraLinear(getattr(block, name), rank))
    return model


def adapter_weights(model: DemoModel) -> dict[str, Tensor]:
    """Return the adapter's matrices by the names that PEFT gives them."""
    return {f"{KEY_PREFIX}{name}": tensor for name, tensor in model.state_dict().items() if ".lora_" in name}


def adapter_config(rank: int) -> dict[str, object]:
    return {
        "base_model_name_or_path": BASE_MODEL,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": SCALE * rank,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": list(TARGETS),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }


def save_adapter(model: DemoModel, folder: Path) -> None:
    weights = {name: tensor.to(torch.float16).contiguous() for name, tensor in adapter_weights(model).items()}
    rank = next(len(tensor) for name, tensor in weights.items() if "lora_A" in name)
    config = f"{json.dumps(adapter_config(rank), indent=2)}\n"
    replace_files(
        folder,
        {
            "adapter_config.json": config.encode(),
            "adapter_model.safetensors": save(weights, metadata={"format": "pt"}),
        },
    )


def load_adapter(model: DemoModel, folder: Path) -> DemoModel:
    """Put the adapter of a folder beside the model's matrices."""
    weights = load_file(folder / "adapter_model.safetensors")
    rank = json.loads((folder / "adapter_config.json").read_text())["r"]
    add_lora(model, rank).load_state_dict(
        {name.removeprefix(KEY_PREFIX): tensor.float() for name, tensor in weights.items()}, strict=False
    )
    return model.eval()
