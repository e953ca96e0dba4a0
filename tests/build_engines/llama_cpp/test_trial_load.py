"""Files that llama.cpp does not load, and the memory of a sequence of those that it loads."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

import gguf
import pytest
from cyllama.llama import llama_cpp as llama

from build_engines.architecture import Architecture, LatentAttention, Recurrence
from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.trial_load import NUM_SEQUENCES, WINDOW, check_loads, sequence_memory_of
from build_engines.model_source import DEMO
from build_engines.parallelism import Parallelism
from build_engines.planner.memory import cache_terms, sequence_memory
from build_engines.sequence_memory import SequenceMemory
from model_repository.engine.llama_cpp.context import context_params
from model_repository.engine.llama_cpp.context_count import MAX_CACHED_WEIGHTS_BYTES
from model_repository.runtimes import PROJECTOR
from model_repository.system.cores import num_physical_cores
from tests.build_engines.tiny_checkpoint import CONFIG
from tests.model_repository.engine.tiny_models import write_model


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    """A GGUF file that llama.cpp loads."""
    write_gguf(Checkpoint.load(checkpoint), tmp_path / "model.gguf")
    check_loads("tiny", tmp_path / "model.gguf", None)
    return tmp_path / "model.gguf"


def test_a_missing_tensor_is_named(model: Path) -> None:
    model.write_bytes(model.read_bytes().replace(b"blk.1.attn_q", b"blk.1.attn_x"))
    with pytest.raises(BuildError, match=r"^tiny: llama\.cpp does not load it: .*'blk\.1\.attn_q\.weight' not found$"):
        check_loads("tiny", model, None)


@pytest.mark.parametrize("num_layers", [0, 10**6, 2**31])
def test_a_file_at_which_llama_cpp_aborts_is_refused(model: Path, num_layers: int) -> None:
    """It was built, and ended the engine's process at each load."""
    gguf.GGUFReader(model, "r+").fields["llama.block_count"].parts[-1][0] = num_layers
    with pytest.raises(BuildError, match=r"^tiny: llama\.cpp does not load it: .*n_layer"):
        check_loads("tiny", model, None)


def test_a_projector_of_another_model_is_refused(model: Path) -> None:
    with pytest.raises(BuildError, match=r"mismatch between text model \(n_embd = 48\) and mmproj \(n_embd = 192\)"):
        check_loads("tiny", model, DEMO / PROJECTOR)


# --- the memory of a sequence -----------------------------------------------------------------------------------------

_tiny = partial(
    Architecture,
    class_name="Tiny",
    num_layers=2,
    hidden_size=CONFIG["hidden_size"],
    num_heads=3,
    num_kv_heads=1,
    head_size=16,
    intermediate_size=96,
    vocab_size=CONFIG["vocab_size"],
)
_states = partial(Recurrence, num_heads=6, head_size=16, state_size=16, num_groups=2, conv_width=4)
# The numbers of `tiny_models`, as the planner has them.
ARCHITECTURES = {
    "gpt-oss": _tiny(layer_pattern="SF", sliding_window=32),
    "qwen35": _tiny(layer_pattern="RF", recurrence=_states(gates_per_head=2)),
    "nemotron_h": _tiny(num_layers=3, layer_pattern="FR-", recurrence=_states(gates_per_head=1)),
    "lfm2": _tiny(
        layer_pattern="FR",
        recurrence=Recurrence(
            num_heads=CONFIG["hidden_size"], head_size=1, state_size=0, num_groups=0, conv_width=3, gates_per_head=1
        ),
    ),
    "deepseek2": _tiny(
        latent_attention=LatentAttention(
            kv_lora_rank=32, q_lora_rank=24, qk_nope_head_size=16, qk_rope_head_size=8, v_head_size=16
        )
    ),
}
_ROUNDING = 0.005 * 2**20 / NUM_SEQUENCES  # bytes of a sequence: the log has hundredths of MiB


def counted(name: str) -> SequenceMemory:
    """Return what the planner counts, in 16 bit on one GPU."""
    return sequence_memory(ARCHITECTURES[name], cache_terms(ARCHITECTURES[name], Parallelism(), 2))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_llama_cpp_allocates_what_the_planner_counts(name: str, tmp_path: Path) -> None:
    expected, found = counted(name), check_loads(name, write_model(tmp_path / "model.gguf", name), None)
    assert found is not None
    # The engine lets layers with a sliding window keep all tokens.
    assert found.bytes_per_token == expected.bytes_per_token + expected.bytes_per_window_token > 0
    assert abs(found.state_bytes - expected.state_bytes) <= _ROUNDING


def unallocated(path: Path) -> llama.LlamaModel:
    """Return a model without its weights."""
    params = llama.LlamaModelParams()
    params.no_alloc, params.load_mode = True, 0
    return llama.LlamaModel(str(path), params)


def test_a_cache_in_f32_is_twice_as_large(model: Path) -> None:
    half, whole = check_loads("tiny", model, None), check_loads("tiny", model, None, is_f32=True)
    assert half is not None and half.bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert whole is not None and whole.bytes_per_token == 2 * 2 * 2 * 16 * 4


def test_a_recurrent_model_keeps_the_same_for_a_text_of_any_length(tmp_path: Path) -> None:
    memory = check_loads("mamba", write_model(tmp_path / "model.gguf", "mamba"), None)
    assert memory is not None and memory.num_bytes(2) == memory.num_bytes(10**6)
    layer_bytes = (96 * 16 + 96 * 3) * 4  # inner size x states, and the convolution's
    assert abs(memory.state_bytes - 2 * layer_bytes) <= _ROUNDING


@pytest.mark.parametrize("is_f32", [False, True])
@pytest.mark.parametrize("window", [2048, 32_768])
def test_the_buffers_of_a_context_are_known_for_other_windows(model: Path, window: int, is_f32: bool) -> None:
    memory, logged = check_loads("tiny", model, None, is_f32=is_f32), list[str]()
    assert memory is not None
    llama.set_log_callback(lambda level, text: logged.append(text))
    try:
        llama.LlamaContext(unallocated(model), context_params(2, window, is_f32=is_f32)).close()
    finally:
        llama.disable_logging()
    [size_mib] = re.findall(r"compute buffer size = +([\d.]+) MiB", "".join(logged))
    logits_bytes = 512 * CONFIG["vocab_size"] * 4
    assert memory.buffer_bytes_for(window) == pytest.approx(float(size_mib) * 2**20 - logits_bytes, rel=0.1)


@pytest.mark.parametrize("is_f32", [False, True])
@pytest.mark.parametrize("name", ["bert", "gemma-embedding"])
def test_a_model_that_embeds_has_the_buffers_of_its_longest_prompt(name: str, is_f32: bool, tmp_path: Path) -> None:
    """They hold the mask of all pairs of tokens, but not the scores of each head."""
    path, num_tokens = write_model(tmp_path / "model.gguf", name), 2048
    memory = check_loads(name, path, None, "mean", num_tokens, is_f32=is_f32)
    short = check_loads(name, path, None, "mean", 512, is_f32=is_f32)
    mask_bytes, scores_bytes = 2 * num_tokens**2, 3 * 4 * num_tokens**2  # three heads
    assert memory is not None and short is not None
    assert mask_bytes < memory.step_bytes - short.step_bytes < scores_bytes
    assert memory.num_bytes(num_tokens) == 0


def test_each_context_of_a_model_that_embeds_has_buffers(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "bert")
    memory = check_loads("bert", path, None, "mean", 512)
    os.truncate(path, MAX_CACHED_WEIGHTS_BYTES + 1)
    of_one = check_loads("bert", path, None, "mean", 512)
    assert memory is not None and of_one is not None
    num_contexts = min(num_physical_cores(), NUM_SEQUENCES)
    assert memory.step_bytes == pytest.approx(num_contexts * of_one.step_bytes, rel=1e-6)


@pytest.mark.parametrize("is_f32", [False, True])
def test_a_decoder_that_embeds_has_a_cache_and_the_buffers_of_a_piece(is_f32: bool, tmp_path: Path) -> None:
    path, num_tokens = write_model(tmp_path / "model.gguf", "qwen3moe"), 8192
    generating = check_loads("qwen3moe", path, None, is_f32=is_f32)
    memory = check_loads("qwen3moe", path, None, "last", num_tokens, is_f32=is_f32)
    assert generating is not None and memory is not None
    cache_bytes = generating.num_bytes(num_tokens)
    assert cache_bytes < memory.step_bytes < cache_bytes + 2 * num_tokens**2


def test_a_sliding_window_has_room_for_a_batch(tmp_path: Path) -> None:
    """llama.cpp, without `swa_full`: the window and a batch, in blocks of 256 tokens."""
    params = context_params(NUM_SEQUENCES, WINDOW, is_f32=False)
    params.swa_full = False
    path, logged = write_model(tmp_path / "model.gguf", "gpt-oss"), list[str]()
    llama.set_log_callback(lambda level, text: logged.append(text))
    try:
        llama.LlamaContext(unallocated(path), params).close()
    finally:
        llama.disable_logging()
    expected = counted("gpt-oss")
    assert sequence_memory_of("".join(logged)) == SequenceMemory(
        bytes_per_token=expected.bytes_per_token,
        window=768,  # 32 + 512
        bytes_per_window_token=expected.bytes_per_window_token,
    )
