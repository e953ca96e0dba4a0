"""Compares an answer beside other traffic with the answer to the same request alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cyllama.llama import llama_cpp as llama

MAX_LOGPROB_ERROR = 1e-4
NUM_TOP = 20  # candidates at a position that may take a draw's place


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion. If it was cancelled or failed, its tokens are some of the first ones."""

    token_ids: tuple[int, ...]
    tops: tuple[Mapping[int, float], ...] = ()  # log probabilities at each of them, if requested
    scores: tuple[float, ...] = ()  # log probabilities of an echoed prompt's tokens
    end: str | None = None  # finish reason and stop reason, or the error; None: it was cancelled
    is_whole: bool = True


class Difference(Exception):
    """An answer beside other traffic is not the answer alone."""


@dataclass(slots=True)
class Comparison:
    """Compares answers, and counts them.

    A token may differ from the one alone only if rounding explains it: alone, the other token is drawn, too, once the
    candidates' logits are moved by at most the measured rounding of the library. The rest of such an answer follows
    from that token and is not compared.

    Args:
        rounding: of a logit; see `measure_rounding`.
        vocab_size: number of logits.
    """

    rounding: float
    vocab_size: int
    num_equal: int = 0
    exceptions: list[str] = field(default_factory=list)  # by rounding

    def compare(self, name: str, ask: Callable[[Mapping[int, float], int], Answer], alone: Answer, got: Answer) -> None:
        """Compare an answer with the answer alone.

        Args:
            ask: asks alone, with biases of logits, and with a number of top log probabilities at each position.

        Raises:
            Difference: rounding does not explain it.
        """
        pairs = zip(alone.token_ids, got.token_ids, strict=False)
        shorter = min(len(alone.token_ids), len(got.token_ids))
        same = next((index for index, (expected, token_id) in enumerate(pairs) if expected != token_id), shorter)
        errors = [abs(each - other) for each, other in zip(alone.scores, got.scores, strict=False)]
        for expected_top, top in zip(alone.tops[:same], got.tops[:same], strict=False):
            errors += [abs(expected_top[token_id] - top[token_id]) for token_id in expected_top.keys() & top.keys()]
        if max(errors, default=0.0) > MAX_LOGPROB_ERROR:
            raise Difference(f"{name}: a log probability differs by {max(errors):.2g}")
        if same < shorter:
            self._explain(name, ask, alone.token_ids[: same + 1], got.token_ids[same])
        elif got.end not in (None, alone.end):
            raise Difference(f"{name}: it ends with {got.end}, alone with {alone.end}")
        elif alone.is_whole and (got.is_whole or same < len(got.token_ids)) and alone.token_ids != got.token_ids:
            raise Difference(f"{name}: {len(got.token_ids)} tokens, alone {len(alone.token_ids)}")
        else:
            self.num_equal += 1

    def _explain(
        self, name: str, ask: Callable[[Mapping[int, float], int], Answer], expected: Sequence[int], token_id: int
    ) -> None:
        top = ask({}, NUM_TOP).tops[len(expected) - 1]
        for biases in self._moves(top, expected[-1], token_id):
            if ask(biases, 0).token_ids[: len(expected)] == (*expected[:-1], token_id):
                self.exceptions.append(f"{name}: token {len(expected)} is {token_id}, alone {expected[-1]}")
                return
        raise Difference(f"{name}: token {len(expected)} is {token_id}, alone {expected[-1]} of {dict(top)}")

    def _moves(self, top: Mapping[int, float], expected: int, token_id: int) -> Iterator[dict[int, float]]:
        """Yield the moves of logits that favour a token most.

        The likeliest token wins, or a random number picks one from candidates in the order of their ids or
        probabilities. A border between two tokens moves farthest if all before it gain, and all behind it lose.
        """
        yield {token_id: self.rounding, expected: -self.rounding}
        for order in (list(range(self.vocab_size)), sorted(top, key=lambda candidate: -top[candidate])):
            if expected in order and token_id in order:
                border = 1 + min(order.index(expected), order.index(token_id))
                for move in (self.rounding, -self.rounding):
                    yield dict.fromkeys(order[:border], move) | dict.fromkeys(order[border:], -move)


def measure_rounding(model: Path, prompt: Sequence[int]) -> float:
    """Return the largest difference of a log probability between two ways to compute a prompt in one sequence.

    Alone, a prompt is computed in few large pieces and the completion token by token; beside others the pieces are
    different.
    """
    llama.disable_logging()
    llama.ggml_backend_load_all()
    loaded, params = llama.LlamaModel(str(model), llama.LlamaModelParams()), llama.LlamaContextParams()
    params.n_ctx, params.n_threads, params.n_threads_batch = len(prompt), 1, 1
    params.type_k = params.type_v = params.flash_attn_type = 0  # f32 without flash attention
    context, batch = llama.LlamaContext(loaded, params), llama.LlamaBatch(n_tokens=len(prompt), embd=0, n_seq_max=1)
    computed = []
    for size in (len(prompt), 1):
        context.memory_seq_rm(0, -1, -1)
        rows = []
        for begin in range(0, len(prompt), size):
            batch.clear()
            for position in range(begin, begin + size):
                batch.add(prompt[position], position, [0], True)
            context.decode(batch)
            rows += [np.array(context.get_logits_ith(row)) for row in range(size)]
        logits = np.stack(rows)
        computed.append(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    for each in (batch, context, loaded):
        each.close()
    return float(np.abs(computed[0] - computed[1]).max())
