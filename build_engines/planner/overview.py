"""Plans of many models on many GPUs: one table for a terminal, and the page docs/plans.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from build_engines.catalog import Catalog
from build_engines.errors import BuildError
from build_engines.gpus import GPUS, Gpu
from build_engines.model_entry import ModelEntry, Precision
from build_engines.planner import memory
from build_engines.planner.plan import DEFAULT_MAX_BATCH_SIZE, plan
from build_engines.planner.search import DEFAULT_MAX_NUM_TOKENS
from build_engines.planner.sizing import COMFORTABLE_WEIGHTS_SHARE, Plan
from build_engines.tables import markdown_table

HEADER = (
    "model",
    "precision",
    "layout",
    "weights GB",
    "workspace GB",
    "runtime GB",
    "cache GB",
    "free GB",
    "cache B/token",
    "cache tokens",
    "sequences",
    "disk GB",
    "RAM GB",
    "build",
)

COMMAND = ".venv/bin/conch plan --all --markdown > docs/plans.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The plan of a model in one precision on one GPU, or the reason why it does not fit."""

    entry: ModelEntry
    gpu: Gpu
    precision: Precision
    plan: Plan | None = None
    refusal: str = ""


def outcomes(
    entries: Iterable[ModelEntry], gpus: Iterable[Gpu], *, precision: str | None = None, **settings: Any
) -> Iterator[Outcome]:
    """Plan each model on each GPU, in each precision that both have, or only in the given one.

    Args:
        settings: further arguments of `plan`.
    """
    models = list(entries)
    for gpu in gpus:
        for entry in models:
            precisions = [name for name in entry.precisions if name.runs_on(gpu)] or entry.precisions[:1]
            for name in precisions if precision is None else [Precision(precision)]:
                try:
                    found = plan(entry, gpu, precision=name, **settings)
                except BuildError as exc:
                    yield Outcome(entry=entry, gpu=gpu, precision=name, refusal=str(exc))
                else:
                    yield Outcome(entry=entry, gpu=gpu, precision=name, plan=found)


def row(outcome: Outcome) -> tuple[str, ...]:
    """Return a row of the table."""
    found = outcome.plan
    begin = (outcome.entry.short_name, outcome.precision.value)
    if found is None:
        return (*begin, "none", *[""] * (len(HEADER) - 3))
    parts = found.memory
    sizes = (parts.weights_bytes, parts.workspace_bytes, parts.reserve_bytes, parts.kv_cache_bytes, parts.free_bytes)
    return (
        *begin,
        str(found.parallelism),
        *(f"{size / 1e9:.1f}" for size in sizes),
        str(found.sequence_memory.bytes_per_token),
        str(found.num_cached_tokens),
        f"{found.num_concurrent_sequences} x {found.max_seq_len}",
        f"{found.build_disk_bytes / 1e9:.0f}",
        f"{found.build_ram_bytes / 1e9:.0f}",
        found.build_time_class.value,
    )


def page(catalog: Catalog) -> str:
    """Return docs/plans.md."""
    found = list(outcomes(catalog.built, GPUS.values()))
    lines = list(_introduction())
    for gpu in GPUS.values():
        here = [outcome for outcome in found if outcome.gpu == gpu]
        lines += [
            f"## {gpu.name}, {gpu.memory_bytes // 10**9} GB, {gpu.architecture}",
            "",
            *markdown_table(HEADER, map(row, here)),
            "",
        ]
        refusals = dict.fromkeys(outcome.refusal for outcome in here if outcome.plan is None)
        lines += [*(f"- {refusal}" for refusal in refusals), *([""] if refusals else [])]
    return "\n".join(lines).rstrip() + "\n"


def _introduction() -> Iterator[str]:
    yield "# Plans"
    yield ""
    yield "What each model of the catalog that `build` makes takes on each GPU. Nothing has been measured on a GPU yet."
    yield f"Written by `{COMMAND}`; a test keeps it equal to the code."
    yield ""
    for point in _POINTS:
        yield textwrap.fill(point, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    yield ""


_POINTS = (
    "Sizes are of one GPU, the fullest, in decimal GB; a GPU has as many as it is sold with. Weights, workspace, "
    "runtime, cache and free memory add up to that. `.venv/bin/conch plan MODEL --gpu GPU` shows "
    "how.",
    "*layout*: TP splits every matrix, PP splits the layers; a node holds 8 GPUs. It is the smallest layout within a "
    f"node whose weights take at most {COMFORTABLE_WEIGHTS_SHARE:.0%} of a GPU; if there is none, the smallest in "
    "which one sequence fits; more nodes only if one is not enough. No FP8 on A100, which has none. NVFP4 "
    "is for B200 and the PyTorch backend: its checkpoints come ready from NVIDIA's ModelOpt, and nothing is built.",
    "*weights* are exact: each matrix over the ranks that share it. Embeddings and norms are on every rank, and so are "
    "the compressions of latent attention. FP8 and NVFP4 keep embeddings, head and norms at 16 "
    "bit, and NVFP4 has a scale of a byte for each 16 values.",
    f"*workspace* is an estimate: {DEFAULT_MAX_NUM_TOKENS} tokens in a step x the values that are alive in a layer x "
    f"{memory.ACTIVATION_BYTES} B, and sequences x vocabulary x {memory.SAMPLING_BYTES} B for sampling. Two logs of "
    "TensorRT-LLM that others have published show 2% more and a third less; a test compares them. Log probabilities of "
    "prompts and LoRA adapters take more; plans leave that out.",
    f"*runtime* is an estimate: {memory.CONTEXT_BYTES / 1e9:.0f} GB for the CUDA context and libraries, of which logs "
    f"show 0.8 to 3.2 GB, and {memory.COMMUNICATION_BYTES / 1e9:.0f} GB for communication between GPUs. Where only the "
    f"PyTorch backend runs the model, its CUDA graphs take up to {memory.GRAPH_BYTES / 1e6:.0f} MB each.",
    f"*cache* is {memory.KV_CACHE_SHARE:.0%} of what is left, as TensorRT-LLM takes it; the rest stays *free*.",
    f"*sequences* of so many tokens fit at the same time, at most {DEFAULT_MAX_BATCH_SIZE} in a step; shorter ones "
    "take less. For DeepSeek-V2.5 only a build with 4 sequences of 4,096 tokens is documented, so that one is planned.",
    "*disk* holds checkpoint, converted checkpoint and engines; *RAM* is the need of a conversion on the CPU, if all "
    "ranks are converted at the same time. RAM and time are estimates.",
)
