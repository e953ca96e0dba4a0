"""The texts around models' thinking: one table for the build, the engine and the frontend."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class ReasoningFormat(Struct, frozen=True):
    """The markers of thinking. Special tokens among them belong to the text of a completion."""

    name: str
    begin: str  # written by the chat template, or by the model at the start of its completion
    end: str


REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    each.name: each
    for each in (
        # Source: the chat templates of Qwen3, DeepSeek-R1, GLM-4.5, MiniMax-M2 and Nemotron 3.
        ReasoningFormat("think", "<think>", "</think>"),
        # Source: the chat template of Magistral.
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        # Source: the chat template of Gemma 4, in llama.cpp's models/templates.
        ReasoningFormat("gemma4", "<|channel>thought\n", "<channel|>"),
        # Source: the chat template of Seed-OSS.
        ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    )
}


def detect_reasoning_format(chat_template: str) -> str:
    """Return the name of the format whose end marker is in a chat template; empty: the model does not think."""
    return next((name for name, each in REASONING_FORMATS.items() if each.end in chat_template), "")
