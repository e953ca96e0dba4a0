"""Models that `serve` is given by name: build_engines builds them, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from frontend.launcher.signals import EndingSignals
from model_repository.system.process_start import ENDING_SIGNALS, blocked

# Options of `build` that `serve` and `run` take for their models: the name of the value (empty: a switch), and the
# meaning.
MODEL_OPTIONS: Mapping[str, tuple[str, str]] = {
    "--context-window": ("N", "Tokens of prompt and completion."),
    "--max-sequences": ("N", "Requests that the model answers at the same time."),
    "--replicas": ("N", "Engines of the model, which share its requests."),
    "--gpu-layers": ("N", "Layers that graphics cards compute: `auto`, `all` or a number."),
    "--device": ("NAME", "Cards that compute them, such as CUDA0,CUDA1."),
    "--speculative": ("NAME", "`ngram` drafts tokens by repetitions in the text."),
    "--llm-option": ("KEY=VALUE", "Keyword of TensorRT-LLM's LLM; repeatable."),
    "--precision": ("NAME", "Precision of the matrices, such as q8_0."),
    "--alias": ("NAME", "Further name of the model; repeatable."),
    "--tool-call-format": ("NAME", "Format of the model's tool calls."),
    "--load": ("WHEN", "`start` loads the model as the server starts, `demand` by its first request."),
    "--keep-alive": ("DURATION", "Unload the model after this time without work, such as 5m; negative: never."),
    "--pin": ("", "Never unload the model to make room for another one."),
    "--default": ("NAME=VALUE", "Value for requests without this field, such as temperature=0.7; repeatable."),
}


# Those that change artifacts or name one, so that they need a MODEL.
OF_BUILD = ("--context-window", "--precision", "--alias", "--tool-call-format", "--default")


def build_models(
    models: Sequence[str],
    home: Path,
    repository: Path,
    options: Sequence[str] = (),
    *,
    signals: EndingSignals,
    log: Callable[[str], None] | None = None,
) -> int:
    """Build each model unless its artifact is there, and render the repository of all.

    Args:
        models: for `build_engines build`; none: the models of the store, as they are.
        options: its options, as those of MODEL_OPTIONS.
        signals: each of them ends the build as Ctrl-C does.
        log: called with each line of its log; None: it writes to stderr.

    Returns:
        the exit status; if it is not 0, build_engines has written the reason to stderr.
    """
    if not models:
        return _run(["render", f"--store={home}", f"--repository={repository}", *options], signals, log)
    places = (f"--home={home}", f"--repository={repository}")
    return _run(["build", "--ready", *models, *options, *places], signals, log)


def _run(words: Sequence[str], signals: EndingSignals, log: Callable[[str], None] | None) -> int:
    command = [sys.executable, "-P", "-m", "build_engines", *words]
    with blocked(ENDING_SIGNALS):  # until it can end without a traceback
        build = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=None if log is None else subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches this process alone
        )
    with build:
        signals.call(lambda number: build.send_signal(signal.SIGINT))
        for line in build.stderr or ():
            if log is not None:
                log(line.rstrip())
    return build.returncode
