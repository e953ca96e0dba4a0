"""Reads the shape of a model from its config.json. Each family of models has its own names for the fields.

Source of the names: published config.json files. tests/data/model_configs.json has some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from build_engines.architecture import (
    Architecture,
    Indexer,
    KvHeads,
    LatentAttention,
    LayerKind,
    MixtureOfExperts,
    Recurrence,
    VisionTower,
)
from build_engines.checkpoint import MAX_WHOLE_NUMBER, whole_number
from build_engines.errors import UnsupportedCheckpoint
from build_engines.json_files import class_of

# This module reads the fields of these classes. It cannot read the others: they have more kinds of layers, or sizes for
# single layers.
READ_CLASSES = frozenset(
    f"{name}For{task}"
    for task, names in {
        "CausalLM": (
            *("Cohere2", "DeepseekV2", "DeepseekV3", "DeepseekV32", "Exaone4", "Gemma2", "Gemma3", "Glm4Moe"),
            *("GlmMoeDsa", "GptOss", "Llama", "MiniMaxM2", "Mistral", "Mixtral", "Nemotron", "NemotronH", "Phi3"),
            *("Qwen2", "Qwen3", "Qwen3Moe", "Qwen3Next", "Qwen3_5Moe"),
        ),
        "ConditionalGeneration": (
            *("Gemma3", "Gemma4", "Gemma4Unified", "KimiK25", "Llama4", "LlavaNext", "Mistral3", "Qwen2VL"),
            *("Qwen2_5_VL", "Qwen3VL", "Qwen3VLMoe", "Qwen3_5", "Qwen3_5Moe"),
        ),
    }.items()
    for name in names
)

_LAYER_LISTS = ("layer_types", "layers_block_type", "hybrid_override_pattern")  # an item for each layer
_KINDS = {  # of layer_types and layers_block_type
    "full_attention": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "deepseek_sparse_attention": LayerKind.FULL,
    "chunked_attention": LayerKind.FULL,  # planned for all tokens: how much TensorRT-LLM keeps of them is not known
    "sliding_attention": LayerKind.SLIDING,
    "linear_attention": LayerKind.RECURRENT,
    "mamba": LayerKind.RECURRENT,
    "moe": LayerKind.NOTHING,
    "mlp": LayerKind.NOTHING,
}
_LETTERS = {  # of hybrid_override_pattern (Nemotron) and sliding_window_pattern (Exaone)
    "*": LayerKind.FULL,
    "M": LayerKind.RECURRENT,
    "E": LayerKind.NOTHING,
    "-": LayerKind.NOTHING,
    "L": LayerKind.SLIDING,
    "G": LayerKind.FULL,
}
_TIED = ("Gemma", "Cohere")  # classes that tie their embeddings by default
_UNGATED = "relu2"  # the activation of networks without a gate


def architecture_of(config: Mapping[str, Any], whole: Mapping[str, Any]) -> Architecture:
    """Return the shape of a model.

    Args:
        config: of the language model.
        whole: config.json, which has it inside if the model reads images. The parts for images are left out, except
            those of Qwen2.5-VL, the only model for which Conch reads them on GPUs.

    Raises:
        UnsupportedCheckpoint: names the field, its value and the rule.
    """
    class_name = class_of(whole)
    if class_name not in READ_CLASSES:
        rule = "Conch does not read its sizes: write them into a file for --catalog"
        raise UnsupportedCheckpoint(f"config.json: architectures={class_name}: {rule}")
    fields = _Fields(config)
    try:
        return _architecture(class_name, fields, _Fields(whole))
    except ValidationError as exc:
        # A rule between two numbers: each alone is checked already.
        raise UnsupportedCheckpoint(f"config.json: {exc.errors()[0]['ctx']['error']}") from exc


class _Fields:
    """Fields of config.json, each by the names that families give it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def get(self, *names: str) -> Any:
        """Return the first value that is there; None: none is."""
        return next((self._config[name] for name in names if self._config.get(name) is not None), None)

    def count(self, *names: str, default: int | None = None) -> int:
        """Return the first number that is there.

        Raises:
            UnsupportedCheckpoint: it is not a whole number from 1, or there is none and no default.
        """
        if self.get(*names) is None and default is not None:
            return default
        return self._number(names, 1)

    def size(self, *names: str) -> int:
        """Return the first number that is there, 0 without one."""
        return 0 if self.get(*names) is None else self._number(names, 0)

    def _number(self, names: tuple[str, ...], at_least: int) -> int:
        name = next((name for name in names if self._config.get(name) is not None), names[0])
        return whole_number(f"config.json: {name}", self._config.get(name), at_least, MAX_WHOLE_NUMBER)


def _architecture(class_name: str, fields: _Fields, whole: _Fields) -> Architecture:
    hidden_size, num_heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    num_kv_heads = fields.count("num_key_value_heads", default=num_heads)
    kinds = _layer_kinds(class_name, fields)
    is_whole = fields.get(*_LAYER_LISTS) is not None
    num_layers = fields.count("num_hidden_layers", default=len(kinds) or None if is_whole else None)
    if is_whole and len(kinds) != num_layers:
        raise UnsupportedCheckpoint(f"config.json: num_hidden_layers={num_layers}: {len(kinds)} layers have a kind")
    latent, pattern = _latent_attention(fields), _repeated_part(kinds)
    head_size = fields.count("head_dim", "attention_head_dim", default=max(1, hidden_size // num_heads))
    if latent is not None:
        head_size = latent.qk_nope_head_size + latent.qk_rope_head_size
    is_tied = fields.get("tie_word_embeddings")
    if is_tied is None:
        is_tied = whole.get("tie_word_embeddings")
    activation = fields.get("mlp_hidden_act", "hidden_act", "hidden_activation")
    return Architecture(
        class_name=class_name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        intermediate_size=fields.count(
            *("intermediate_size_mlp", "intermediate_size", "shared_expert_intermediate_size", "moe_intermediate_size")
        ),
        vocab_size=fields.count("vocab_size"),
        has_tied_embeddings=class_name.startswith(_TIED) if is_tied is None else bool(is_tied),
        has_qkv_bias=bool(fields.get("attention_bias")) or class_name.startswith("Qwen2"),
        num_norms_per_layer=4 if class_name.startswith("Gemma") else 1 if LayerKind.NOTHING in pattern else 2,
        num_mlp_matrices=2 if activation == _UNGATED else 3,
        has_output_gate=bool(fields.get("attn_output_gate")) or class_name.startswith("Qwen3Next"),
        layer_pattern=pattern,
        sliding_window=fields.count("sliding_window") if LayerKind.SLIDING in pattern else None,
        full_attention=_full_attention(fields, num_kv_heads),
        num_shared_kv_layers=fields.size("num_kv_shared_layers"),
        has_double_wide_mlp=bool(fields.get("use_double_wide_mlp")),
        per_layer_embedding_size=fields.size("hidden_size_per_layer_input"),
        recurrence=_recurrence(fields) if LayerKind.RECURRENT in pattern else None,
        latent_attention=latent,
        mixture_of_experts=_mixture_of_experts(class_name, fields, num_layers),
        vision=_vision(fields, whole) if class_name.startswith("Qwen2_5_VL") else None,
    )


def _layer_kinds(class_name: str, fields: _Fields) -> str:
    """Return the letters of all layers, or of a part that repeats."""
    name = next((name for name in _LAYER_LISTS if fields.get(name) is not None), "sliding_window_pattern")
    named, interval = fields.get(name), fields.size("full_attention_interval")
    if isinstance(named, str | list):
        kinds = _LETTERS if isinstance(named, str) else _KINDS
        return "".join(_kind(name, kind, kinds) for kind in named)
    if interval:
        return LayerKind.RECURRENT * (interval - 1) + LayerKind.FULL
    if fields.get("sliding_window") is None or (named is None and not class_name.startswith("Gemma2")):
        return LayerKind.FULL
    return LayerKind.SLIDING * (fields.count(name, default=2) - 1) + LayerKind.FULL


def _repeated_part(kinds: str) -> str:
    lengths = (length for length in range(1, len(kinds) + 1) if len(kinds) % length == 0)
    return next((kinds[:length] for length in lengths if kinds[:length] * (len(kinds) // length) == kinds), kinds)


def _kind(field: str, name: object, kinds: Mapping[str, LayerKind]) -> LayerKind:
    if str(name) not in kinds:
        raise UnsupportedCheckpoint(f"config.json: {field}: {name!r:.80}: expected one of {', '.join(kinds)}")
    return kinds[str(name)]


def _full_attention(fields: _Fields, num_kv_heads: int) -> KvHeads | None:
    if fields.get("global_head_dim") is None:
        return None
    num_kv_heads = fields.count("num_global_key_value_heads", default=num_kv_heads)
    return KvHeads(num_kv_heads=num_kv_heads, head_size=fields.count("global_head_dim"))


def _latent_attention(fields: _Fields) -> LatentAttention | None:
    if fields.get("kv_lora_rank") is None:
        return None
    indexer = None
    if fields.get("index_n_heads") is not None:
        indexer = Indexer(num_heads=fields.count("index_n_heads"), head_size=fields.count("index_head_dim"))
    return LatentAttention(
        kv_lora_rank=fields.count("kv_lora_rank"),
        q_lora_rank=fields.count("q_lora_rank"),
        qk_nope_head_size=fields.count("qk_nope_head_dim"),
        qk_rope_head_size=fields.count("qk_rope_head_dim"),
        v_head_size=fields.count("v_head_dim"),
        indexer=indexer,
        has_absorbed_queries=False,
    )


def _recurrence(fields: _Fields) -> Recurrence:
    """Return the numbers of Mamba 2 or of gated delta nets."""
    is_mamba = fields.get("mamba_num_heads") is not None
    return Recurrence(
        num_heads=fields.count("mamba_num_heads", "linear_num_value_heads"),
        head_size=fields.count("mamba_head_dim", "linear_value_head_dim"),
        state_size=fields.count("ssm_state_size", "linear_key_head_dim"),
        num_groups=fields.count("n_groups", "linear_num_key_heads"),
        conv_width=fields.count("conv_kernel", "linear_conv_kernel_dim"),
        gates_per_head=1 if is_mamba else 2,
    )


def _mixture_of_experts(class_name: str, fields: _Fields, num_layers: int) -> MixtureOfExperts | None:
    num_experts = fields.size("num_experts", "n_routed_experts", "num_local_experts")
    if not num_experts:
        return None
    size = fields.count("moe_intermediate_size", "intermediate_size")
    num_shared = fields.size("n_shared_experts")
    shared_size = num_shared * fields.count("moe_shared_expert_intermediate_size", default=size)
    shared_size = fields.size("shared_expert_intermediate_size", "shared_intermediate_size") or shared_size
    if fields.get("enable_moe_block"):  # Gemma 4 adds up a dense network and the experts
        shared_size = fields.count("intermediate_size")
    elif class_name.startswith("Llama4"):
        shared_size = size
    return MixtureOfExperts(
        num_routed_experts=num_experts,
        num_shared_experts=-(-shared_size // size),
        num_experts_per_token=fields.count("num_experts_per_tok", "top_k_experts"),
        intermediate_size=size,
        hidden_size=fields.size("moe_latent_size") or None,
        num_dense_layers=_num_dense_layers(fields, num_layers),
        num_groups=fields.count("n_group", default=1),
    )


def _num_dense_layers(fields: _Fields, num_layers: int) -> int:
    """Return the number of layers without experts, wherever they are."""
    step = fields.count("interleave_moe_layer_step", "decoder_sparse_step", default=1)
    num_skipped = num_layers - num_layers // step
    return num_skipped + fields.size("first_k_dense_replace") + len(fields.get("mlp_only_layers") or ())


def _vision(fields: _Fields, whole: _Fields) -> VisionTower:
    vision = _Fields(whole.get("vision_config") or {})
    return VisionTower(
        num_layers=vision.count("depth"),
        hidden_size=vision.count("hidden_size"),
        intermediate_size=vision.count("intermediate_size"),
        patch_size=vision.count("patch_size"),
        merge_size=vision.count("spatial_merge_size"),
        max_positions=fields.count("max_position_embeddings"),
    )
