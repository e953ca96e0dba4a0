"""Long prompts at the real server: others' requests do not wait until they are tokenized."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from model_repository import contract
from model_repository.stage_messages import TokenizeOptions
from model_repository.tensors import array
from tests.integration.stack import DEADLINE_S, Stack

STAGE = contract.stage_name("demo", "tokenizer")
LONG = "apple boat cloud door " * 20_000  # tokens take part of a second
NUM_LONG = 8


def tokenize(stack: Stack, text: str) -> np.ndarray[Any, Any]:
    """Return a text's token ids."""
    inputs = {
        contract.TEXT_INPUT.name: array(contract.TEXT_INPUT, text),
        contract.TOKENIZE.name: array(contract.TOKENIZE, TokenizeOptions().to_json()),
    }
    [answer] = stack.infer(STAGE, inputs)
    return answer[contract.PROMPT_TOKEN_IDS.name].reshape(-1)


def test_a_short_prompt_is_answered_before_the_long_ones_that_came_earlier(stack: Stack) -> None:
    with ThreadPoolExecutor(NUM_LONG) as clients:
        long = [clients.submit(tokenize, stack, f"{number} {LONG}") for number in range(NUM_LONG)]
        wait(long, DEADLINE_S, FIRST_COMPLETED)  # by now the others wait in the stage
        short = tokenize(stack, "Hello")
        num_before = sum(future.done() for future in long)
    assert num_before <= NUM_LONG // 2
    assert 0 < len(short) < 10
    assert all(len(future.result()) > 80_000 for future in long)
