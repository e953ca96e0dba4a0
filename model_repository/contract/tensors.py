"""Every tensor of every stage, and the ensembles that join the stages.

The public names are those of NVIDIA's TensorRT-LLM ensemble, so that its gRPC clients work unchanged, and our own. All
shapes are without the batch dimension, which is always 1: a client sends [1, *shape].
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from model_repository.contract.output import GenerationChunk, VectorChunk
from model_repository.contract.request import ChatPrompt, GenerationRequest, PairPrompt, TextPrompt, TokenPrompt
from model_repository.contract.spec import StageSpec, TensorSpec, specs_of

MAX_TOKENIZER_BATCH = 8  # requests: eight together cost a third less than eight alone

# Environment variable with Triton's key. If Triton has a key, all control messages except `{}` and
# `{"cancel_keys": [str]}` also need `"key": str`.
KEY_VARIABLE = "CONCH_TRITON_KEY"
CALL_TIMEOUT_S = 5.0  # a frontend waits no longer for a call with one response
CONTROL_MESSAGES = (
    '`{}`, `{"cancel_keys": [str]}`, `{"fail": "running"}`, `{"fail": "streams"}`, `{"drain": bool}`, '
    '`{"load_adapter": str, "source": str}` or `{"unload_adapter": str}`'
)

# --- the public ensemble's inputs, all read by the tokenizer stage ----------------------------------------------------
# Accepted from NVIDIA's clients: they do not change the answer.
_WITHOUT_EFFECT = (
    TensorSpec("return_num_input_tokens", "BOOL", (1,), "accepted: the last response has it anyway"),
    TensorSpec("return_num_output_tokens", "BOOL", (1,), "accepted: the last response has it anyway"),
    TensorSpec("pad_id", "INT32", (1,), "accepted: nothing is padded"),
)
HONOURED_INPUTS = (
    *(
        spec
        for message in (TextPrompt, ChatPrompt, TokenPrompt, PairPrompt, GenerationRequest)
        for spec in specs_of(message)
    ),
    *_WITHOUT_EFFECT,
)
# Declared for NVIDIA's clients; only the values without effect are accepted.
NEUTRAL_INPUTS = (
    TensorSpec("num_return_sequences", "INT32", (1,), neutral=(1,)),
    TensorSpec(
        "end_id",
        "INT32",
        (1,),
        "the model's own end tokens end the completion, unless ignore_eos is true",
        neutral=(-1,),
    ),
    TensorSpec("length_penalty", "FP32", (1,), neutral=(0.0, 1.0)),
    TensorSpec("beam_width", "INT32", (1,), neutral=(1,)),
    TensorSpec("return_context_logits", "BOOL", (1,), neutral=(False,)),
    TensorSpec("return_generation_logits", "BOOL", (1,), neutral=(False,)),
    TensorSpec("embedding_bias_words", "BYTES", (-1,), neutral=(b"",)),
    TensorSpec("embedding_bias_weights", "FP32", (-1,), neutral=(0.0,)),
    TensorSpec("lora_task_id", "UINT64", (1,), "use lora_name", neutral=(0,)),
)
PUBLIC_INPUTS = HONOURED_INPUTS + NEUTRAL_INPUTS
PUBLIC_OUTPUTS = specs_of(GenerationChunk)
VECTOR_OUTPUTS = specs_of(VectorChunk)  # of a model that embeds or scores
INPUTS = {spec.name: spec for spec in PUBLIC_INPUTS}

# --- between frontend and stages: the named message, in MessagePack --------------------------------------------------
# A response's cost grows with its number of tensors (about 25 us each), so each message is one tensor.
REQUEST_BATCH = TensorSpec("request_batch", "BYTES", (1,), "RequestBatch, of contract/request.py")
ENGINE_REQUESTS = TensorSpec(
    "engine_requests", "BYTES", (1,), "tokenizer to engine: a signature of 16 bytes, then an EngineRequestBatch"
)
OPEN_STREAM = TensorSpec(
    "open_stream", "BYTES", (1,), "the key of a new output stream: unguessable, since its owner's requests name it"
)
OUTPUT_BATCH = TensorSpec("output_batch", "BYTES", (1,), "engine to detokenizer: OutputBatch, of contract/output.py")
CHUNK_BATCH = TensorSpec("chunk_batch", "BYTES", (1,), "ChunkBatch, of contract/output.py")
TOKENIZE = TensorSpec("tokenize", "BYTES", (1,), "tokenizer: TokenizeRequest; only tokenize the prompt")
TOKENS = TensorSpec("tokens", "BYTES", (1,), "tokenizer: TokenizeAnswer")
DETOKENIZE = TensorSpec("detokenize", "BYTES", (1,), "tokenizer: DetokenizeRequest; the text of token ids")
TEXT = TensorSpec("text", "BYTES", (1,), "tokenizer: the text of a DetokenizeRequest, UTF-8")
CONTROL = TensorSpec("control", "BYTES", (1,), f"engine: JSON, {CONTROL_MESSAGES}")
STATS = TensorSpec("stats", "BYTES", (1,), "engine: JSON of EngineStats, the answer to every `control`")

# The stages beside all models that load and unload them, by their Triton names.
ARBITER = "conch__arbiter"
LOADERS = ("conch__loader1", "conch__loader2")  # a small model is loaded beside a large one
ARBITER_REQUEST = TensorSpec("arbiter_request", "BYTES", (1,), "ArbiterRequest, of contract/arbiter.py, as JSON")
ARBITER_ANSWER = TensorSpec("arbiter_answer", "BYTES", (1,), "ArbiterAnswer, of contract/arbiter.py, as JSON")
ARBITER_STAGE = StageSpec((ARBITER_REQUEST,), (ARBITER_ANSWER,))

REQUESTS, OUTPUTS = "requests", "outputs"


@dataclass(frozen=True, slots=True)
class Layout:
    """The stages of a model, and its ensembles: the stages of each in order, with the tensors that they map."""

    stages: Mapping[str, StageSpec]
    ensembles: Mapping[str, Mapping[str, StageSpec]]  # "" is public, a frontend sends its requests to REQUESTS
    outputs: str  # an ensemble or a stage; a frontend reads all outputs from one call of it


def _ensemble(stages: Sequence[str], *tensors: tuple[TensorSpec, ...]) -> dict[str, StageSpec]:
    """Return the stages of an ensemble. `tensors` are its inputs, those between two stages, and its outputs."""
    return {stage: StageSpec(*around) for stage, around in zip(stages, pairwise(tensors), strict=True)}


_TOKENIZER = StageSpec(
    (*PUBLIC_INPUTS, REQUEST_BATCH, TOKENIZE, DETOKENIZE),
    (ENGINE_REQUESTS, TOKENS, TEXT),
    max_batch_size=MAX_TOKENIZER_BATCH,
)


GENERATOR = Layout(
    stages={
        "tokenizer": _TOKENIZER,
        "engine": StageSpec((ENGINE_REQUESTS, OPEN_STREAM, CONTROL), (OUTPUT_BATCH, STATS), is_decoupled=True),
        # Decoupled so that a disconnect check can go unanswered: a client would see even an empty response.
        "detokenizer": StageSpec((OUTPUT_BATCH,), (*PUBLIC_OUTPUTS, CHUNK_BATCH), is_decoupled=True),
    },
    ensembles={
        "": _ensemble(
            ("tokenizer", "engine", "detokenizer"), PUBLIC_INPUTS, (ENGINE_REQUESTS,), (OUTPUT_BATCH,), PUBLIC_OUTPUTS
        ),
        REQUESTS: _ensemble(("tokenizer", "engine"), (REQUEST_BATCH,), (ENGINE_REQUESTS,), (OUTPUT_BATCH,)),
        OUTPUTS: _ensemble(("engine", "detokenizer"), (OPEN_STREAM,), (OUTPUT_BATCH,), (CHUNK_BATCH,)),
    },
    outputs=OUTPUTS,
)
# Vectors go from the engine to the client. A frontend calls the engine itself for them: behind an ensemble, the engine
# would not see that the frontend is gone.
ENCODER = Layout(
    stages={
        "tokenizer": _TOKENIZER,
        "engine": StageSpec(
            (ENGINE_REQUESTS, OPEN_STREAM, CONTROL), (*VECTOR_OUTPUTS, CHUNK_BATCH, STATS), is_decoupled=True
        ),
    },
    ensembles={
        "": _ensemble(("tokenizer", "engine"), PUBLIC_INPUTS, (ENGINE_REQUESTS,), VECTOR_OUTPUTS),
        REQUESTS: _ensemble(("tokenizer", "engine"), (REQUEST_BATCH,), (ENGINE_REQUESTS,), (CHUNK_BATCH,)),
    },
    outputs="engine",
)


_MODEL_ID = re.compile(r"[A-Za-z0-9](?:[\w.:-]*[A-Za-z0-9])?(?:/[A-Za-z0-9](?:[\w.:-]*[A-Za-z0-9])?)*", re.ASCII)


def model_id_to_ensemble(model_id: str, replica: int = 1) -> str:
    """Return the name of a model's public ensemble. A Triton name is a folder's name, so `/` becomes `--`.

    Args:
        replica: its number, from 1. That of further replicas is in the name, behind `@`, which no model id has.

    Raises:
        ValueError: the id cannot be recovered from such a name.
    """
    if not _MODEL_ID.fullmatch(model_id) or "--" in model_id or "__" in model_id:
        rule = "letters, digits and `. : _ -` between them, parts separated by `/`; neither `--` nor `__`"
        raise ValueError(f"model id {model_id!r}: {rule}")
    ensemble = model_id.replace("/", "--")
    return ensemble if replica == 1 else f"{ensemble}@{replica}"


def ensemble_to_model_id(ensemble: str) -> str:
    return ensemble.partition("@")[0].replace("--", "/")


def replica_suffix(ensemble: str) -> str:
    """Return the end of an ensemble's name that distinguishes it from other replicas; empty for the first."""
    _, sign, number = ensemble.partition("@")
    return sign + number


def stage_name(ensemble: str, stage: str) -> str:
    """Return the Triton name of a stage or an ensemble of a model. The stage "" is the public ensemble."""
    return f"{ensemble}__{stage}" if stage else ensemble


def ensemble_of_stage(stage: str) -> str:
    """Return the public ensemble of the Triton name of a stage or an ensemble."""
    return stage.partition("__")[0]
