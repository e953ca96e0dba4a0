"""How likely transformers, with peft for adapters, finds the tokens that a server chose.

A process of its own, which computes on the CPU in 32 bits: python -m tests.workshop.gpu_acceptance.reference < job.json
The job has `checkpoint`, a folder, and `cases` with `prompt` and `tokens`, lists of ids, and `adapter`, a folder or "".
The answer has, for each case, how much less likely each token is than the likeliest one after the same tokens: 0 for a
greedy choice. So one token that differs, where two are equally likely, does not make all tokens behind it wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TOLERANCE = 0.3  # of log probabilities: a 16-bit number of about 20 is exact to 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A greedy answer of a server."""

    prompt: list[int]  # token ids
    tokens: list[int]  # token ids
    adapter: str = ""  # a folder of peft; empty: the model alone


def lacks(checkpoint: Path, cases: list[Case]) -> list[list[float]]:
    """Return, for each case and token, the log probability that it lacks to the likeliest token.

    Raises:
        RuntimeError: the process failed.
    """
    job = json.dumps({"checkpoint": str(checkpoint), "cases": [asdict(case) for case in cases]})
    command = [sys.executable, "-m", "tests.workshop.gpu_acceptance.reference"]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"transformers: {done.stderr.strip().splitlines()[-1:]}")
    found: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _lacks(model: Any, case: dict[str, Any]) -> list[float]:
    import numpy as np
    import torch

    token_ids = np.array([case["prompt"] + case["tokens"]])
    with torch.inference_mode():
        logits = model(torch.from_numpy(token_ids)).logits[0].numpy()
    rows = logits[len(case["prompt"]) - 1 : -1]
    chosen: list[float] = (rows.max(-1) - rows[range(len(rows)), case["tokens"]]).tolist()
    return chosen


def main() -> None:
    """Answer the job on the standard input."""
    from transformers import AutoModelForCausalLM

    job = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(job["checkpoint"], dtype="float32").eval()
    found: list[list[float]] = []
    for case in job["cases"]:
        if not case["adapter"]:
            found.append(_lacks(model, case))
            continue
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(model, case["adapter"]).eval()
        found.append(_lacks(adapted, case))
        model = adapted.unload()
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
