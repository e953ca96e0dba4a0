"""Write the fixtures of reference.py: `python -m tests.build_engines.llama_cpp.make_reference`.

Needs torch and transformers, which neither the tests nor the project need: install them beside the project, in an
environment of their own.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    SmolVLMForConditionalGeneration,
)

from tests.build_engines.llama_cpp.reference import (
    FOLDER,
    EmbeddingReference,
    ImageReference,
    Reference,
    ScoreReference,
    digest_of,
    write_reference_checkpoint,
)
from tests.build_engines.tiny_checkpoint import CONFIG, random_weights
from tests.build_engines.tiny_embedders import CONFIGS, weights_of, write_embedder
from tests.build_engines.tiny_scorers import FALSE_ID, LABELS, TRUE_ID, classifier_weights, write_scorer
from tests.build_engines.tiny_smolvlm import (
    NUM_TILE_TOKENS,
    PIXELS,
    image_token_ids,
    pixels,
    vision_weights,
    write_smolvlm,
)

SEED = 4
NUM_PROMPT_TOKENS, NUM_GREEDY_TOKENS = 160, 24
PICTURE = 1
POSITIONS = [9, 99, 159, 183]
LLAMA = CONFIG | {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "rope_theta": 10_000.0,
}
QWEN2 = LLAMA | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6}
# Trained on 64 tokens, so that a prompt of 160 is far outside.
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
OWN_YARN = YARN | {"attention_factor": 1.4}
# The prompt and the greedy tokens just fit into the window, and with one token more they would not.
MISTRAL = LLAMA | {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "head_dim": 32,
    "sliding_window": NUM_PROMPT_TOKENS + NUM_GREEDY_TOKENS,
}
QWEN3 = QWEN2 | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32}
CASES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama_wide_heads": LLAMA | {"head_dim": 32, "num_key_value_heads": 1},
    "llama_rope_llama3": LLAMA | {"rope_scaling": LLAMA3, "rope_theta": 500_000.0},
    "llama_rope_linear": LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama_rope_yarn": LLAMA | {"rope_theta": None, "rope_parameters": OWN_YARN | {"rope_theta": 10_000.0}},
    "llama_tied": LLAMA | {"tie_word_embeddings": True},
    "llama_biased": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "llama_sentencepiece": LLAMA | {"num_key_value_heads": 4},
    "mistral": MISTRAL,
    "qwen2": QWEN2 | {"rope_theta": 1_000_000.0},
    "qwen2_tied": QWEN2 | {"tie_word_embeddings": True},
    "qwen2_rope_yarn": QWEN2 | {"rope_scaling": YARN},
    "qwen3": QWEN3 | {"rope_theta": 1_000_000.0},
    "qwen3_tied": QWEN3 | {"tie_word_embeddings": True},
    "qwen3_rope_yarn": QWEN3 | {"rope_scaling": YARN},
}


def make(name: str, config: dict[str, Any]) -> Reference:
    """Run a model."""
    weights = random_weights(config, SEED)
    tokenizer = "sentencepiece" if name.endswith("sentencepiece") else "byte_level"
    with tempfile.TemporaryDirectory() as folder:
        write_reference_checkpoint(Path(folder), config, weights, tokenizer)
        # Everything in F32, and attention by matrix products as the papers write it.
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    prompt = np.random.default_rng(SEED).integers(2, 250, NUM_PROMPT_TOKENS).tolist()
    token_ids = list(prompt)
    with torch.inference_mode():
        for _ in range(NUM_GREEDY_TOKENS):
            token_ids.append(int(model(torch.tensor([token_ids])).logits[0, -1].argmax()))
        logits = model(torch.tensor([token_ids])).logits[0].numpy()
    best = np.sort(logits[NUM_PROMPT_TOKENS - 1 : -1], axis=-1)[:, -2:]
    return Reference(
        config=config,
        seed=SEED,
        weights_sha256=digest_of(weights),
        tokenizer=tokenizer,
        prompt=prompt,
        greedy=token_ids[NUM_PROMPT_TOKENS:],
        margins=(best[:, 1] - best[:, 0]).round(4).tolist(),
        positions=POSITIONS,
        logits=[[round(float(logit), 4) for logit in logits[position]] for position in POSITIONS],
        made_with={package: version(package) for package in ("torch", "transformers", "numpy")},
    )


def make_smolvlm(before: list[int], after: list[int]) -> ImageReference:
    """Run the tiny SmolVLM on a picture."""
    with tempfile.TemporaryDirectory() as folder:
        write_smolvlm(Path(folder))
        model = SmolVLMForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
    mean, deviation = np.array(PIXELS["image_mean"]), np.array(PIXELS["image_std"])
    scaled = (pixels(PICTURE) / 255 - mean) / deviation
    tile = torch.tensor(scaled.transpose(2, 0, 1), dtype=torch.float32)
    inputs = {"pixel_values": torch.stack([tile, tile])[None]}
    prompt = before + image_token_ids() + after
    token_ids = list(prompt)
    with torch.inference_mode():
        features = model.get_image_features(**inputs).pooler_output[0].numpy()[:NUM_TILE_TOKENS]
        for _ in range(NUM_GREEDY_TOKENS):
            token_ids.append(int(model(input_ids=torch.tensor([token_ids]), **inputs).logits[0, -1].argmax()))
        logits = model(input_ids=torch.tensor([token_ids]), **inputs).logits[0, len(prompt) - 1 : -1].numpy()
    best = np.sort(logits, axis=-1)[:, -2:]
    return ImageReference(
        picture=PICTURE,
        weights_sha256=digest_of(vision_weights()),
        features=features.round(5).tolist(),
        before=before,
        after=after,
        greedy=token_ids[len(prompt) :],
        margin=round(float((best[:, 1] - best[:, 0]).min()), 4),
        made_with={package: version(package) for package in ("torch", "transformers", "numpy")},
    )


def f16_gelu(values: torch.Tensor) -> torch.Tensor:
    """Compute GELU as llama.cpp does on CPUs: by its approximation with tanh, from a table of all numbers of f16."""
    return torch.nn.functional.gelu(values.half().float(), approximate="tanh").half().float()


def make_embeddings(name: str) -> EmbeddingReference:
    """Run a model that embeds on prompts of unlike lengths."""
    with tempfile.TemporaryDirectory() as folder:
        write_embedder(Path(folder) / name, name, SEED)
        model = AutoModel.from_pretrained(Path(folder) / name, dtype=torch.float32, attn_implementation="eager")
    random = np.random.default_rng(SEED)
    prompts = [random.integers(5, CONFIGS[name]["vocab_size"] - 40, length).tolist() for length in (3, 40, 1, 100)]

    def embeddings() -> list[list[float]]:
        vectors = []
        for prompt in prompts:
            with torch.inference_mode():
                states = model(torch.tensor([prompt])).last_hidden_state[0].numpy()
            vector = states.mean(axis=0) if name == "bert" else states[-1]
            vectors.append((vector / np.linalg.norm(vector)).round(6).tolist())
        return vectors

    exact = embeddings()
    for layer in model.encoder.layer if name == "bert" else ():
        layer.intermediate.intermediate_act_fn = f16_gelu
    return EmbeddingReference(
        seed=SEED,
        weights_sha256=digest_of(weights_of(name, SEED)),
        prompts=prompts,
        embeddings=exact,
        with_f16_gelu=embeddings(),
        made_with={package: version(package) for package in ("torch", "transformers", "numpy")},
    )


PAIRS = [("the red fox", "a green house"), ("run", "the the"), ("foxes running [SEP]", "the house runs")]


def make_scores(name: str) -> ScoreReference:
    """Run a model that scores on pairs: a judge on token ids, since its template is not transformers'."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_scorer(Path(folder) / name, name, SEED)
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        if name not in LABELS:
            model = AutoModelForCausalLM.from_pretrained(path, **options)
            ids = [np.random.default_rng(SEED).integers(0, 250, length).tolist() for length in (3, 40, 100)]
            encoded = [{"input_ids": each, "token_type_ids": [0] * len(each)} for each in ids]
        else:
            tokenizer = AutoTokenizer.from_pretrained(path, split_special_tokens=True)
            model = AutoModelForSequenceClassification.from_pretrained(path, **options)
            encoded = [tokenizer(*pair) for pair in PAIRS]

    def scores() -> list[list[float]]:
        found = []
        for each in encoded:
            inputs = {key: torch.tensor([each[key]]) for key in ("input_ids", "token_type_ids")}
            with torch.inference_mode():
                if name in LABELS:
                    logits = model(**inputs).logits[0]
                else:
                    logits = model(inputs["input_ids"]).logits[0, -1].log_softmax(0)[[TRUE_ID, FALSE_ID]]
            found.append(logits.numpy().round(6).tolist())
        return found

    exact = scores()
    for layer in model.bert.encoder.layer if name in LABELS else ():
        del layer.intermediate.intermediate_act_fn  # a module
        layer.intermediate.intermediate_act_fn = f16_gelu
    return ScoreReference(
        seed=SEED,
        weights_sha256=digest_of(
            classifier_weights(SEED, len(LABELS[name])) if name in LABELS else weights_of("qwen3", SEED)
        ),
        pairs=PAIRS,
        token_ids=[each["input_ids"] for each in encoded],
        types=[each["token_type_ids"] for each in encoded],
        scores=exact,
        with_f16_gelu=scores(),
        made_with={package: version(package) for package in ("torch", "transformers", "numpy")},
    )


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, config in CASES.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(asdict(make(name, config))) + "\n", encoding="utf-8")
    images = make_smolvlm([40, 41, 42], [50, 51, 52, 53])
    ImageReference.PATH.write_text(json.dumps(asdict(images)) + "\n", encoding="utf-8")
    embeddings = {name: asdict(make_embeddings(name)) for name in CONFIGS}
    EmbeddingReference.PATH.write_text(json.dumps(embeddings) + "\n", encoding="utf-8")
    scores = {name: asdict(make_scores(name)) for name in (*LABELS, "judge")}
    ScoreReference.PATH.write_text(json.dumps(scores) + "\n", encoding="utf-8")
