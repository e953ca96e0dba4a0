"""The demo model in plain PyTorch: a small Llama, with the parameter names of Hugging Face's LlamaForCausalLM."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; every dimension is a multiple of 32, the block of the common quantizations."""

    vocab_size: int = 3_072
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 6
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 32
    max_positions: int = 2_048
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5


def rotary_angles(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, float32 [max_positions, head_dim], in the rotate-half convention."""
    frequencies = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = torch.outer(torch.arange(shape.max_positions).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_size = shape.num_kv_heads * shape.head_dim
        query_size = shape.num_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            projection(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, cos, sin).to(value.dtype), rotate(key, cos, sin).to(value.dtype)
        groups = self.shape.num_heads // self.shape.num_kv_heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return output


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class DemoModel(nn.Module):
    """The decoder; `logits` multiplies by the embedding, which is tied and stored once."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        self.shape = shape or Shape()
        self.embed_tokens = nn.Embedding(self.shape.vocab_size, self.shape.hidden_size)
        self.layers = nn.ModuleList(Layer(self.shape) for _ in range(self.shape.num_layers))
        self.norm = nn.RMSNorm(self.shape.hidden_size, self.shape.norm_eps)
        cos, sin = rotary_angles(self.shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.apply(self.initialise)

    def initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Attention | FeedForward):  # what writes to the residual stream starts smaller
            output = module.o_proj if isinstance(module, Attention) else module.down_proj
            nn.init.normal_(output.weight, std=0.02 / (2 * self.shape.num_layers) ** 0.5)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return the final hidden states, [batch, length, hidden_size], of token ids [batch, length]."""
        return self.run(self.embed_tokens(token_ids))

    def run(self, x: Tensor) -> Tensor:
        """Return the final hidden states of embeddings, [batch, length, hidden_size] both."""
        length = x.shape[1]
        cos, sin = self.get_buffer("cos")[:length], self.get_buffer("sin")[:length]
        for layer in self.layers:
            x = layer(x, cos, sin)
        output: Tensor = self.norm(x)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.embed_tokens.weight)
