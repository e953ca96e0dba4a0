"""Ten minutes on one graphics card: a report of what Conch does on it, to send back.

It needs a driver and Python 3.12. With the network it installs the build of llama.cpp for the card; without, it takes
one that is installed, or compiles llama.cpp with this machine's compiler. The exit status is 0 if no step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from tests.workshop.cards.steps import STEPS, Run
from tests.workshop.gpu_acceptance.report import LeftOut, Report, UnmetNeeds, pack

_INTERRUPTED = "the run was interrupted"
_LAYERS = "--gpu-layers"


def main() -> int:
    """Run the steps, and return the exit status."""
    options = parser().parse_args()
    for folder in (options.home, options.report):
        folder.mkdir(parents=True, exist_ok=True)
    has_card = options.device != "cpu"
    run = Run(
        device=options.device,
        gguf=options.gguf and options.gguf.resolve(),
        sources=options.llama_cpp and options.llama_cpp.resolve(),
        home=options.home.resolve(),
        folder=options.report.resolve(),
        num_prompts=options.prompts,
        num_tokens=options.tokens,
        precision=options.precision,
        on_card=(_LAYERS, "all") if has_card else (),
        on_cores=(_LAYERS, "0") if has_card else (),
    )
    report = Report(
        options.report / "report.md",
        f"llama.cpp, {options.device}",
        os.environ,
        estimate=f"about {sum(step.minutes for step in STEPS):g} minutes on a card, with SmolLM2",
        title="Conch on a graphics card",
    )
    ended = _run(run, report)
    (options.report / "report.json").write_text(json.dumps([asdict(step) for step in report.steps], indent=1) + "\n")
    sys.stderr.write(f"report: {report.path}, packed for its readers: {pack(options.report, os.environ)}\n")
    return 130 if ended == _INTERRUPTED else int(report.has_failed)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m tests.workshop.cards",
        description=__doc__,
        epilog="steps:\n" + "\n".join(f"  {step.name:10}{step.minutes:4g} min  {step.what}" for step in STEPS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    devices = ("cuda12", "rocm", "vulkan", "cpu")
    add("--device", choices=devices, default="cuda12", help="build of llama.cpp; cpu: a trial (%(default)s)")
    add("--gguf", type=Path, metavar="FILE", help="another model than SmolLM2")
    add("--prompts", type=int, default=200, metavar="N", help="compared texts (%(default)s)")
    add("--tokens", type=int, default=32, metavar="N", help="of each completion (%(default)s)")
    add("--precision", choices=("f16", "f32"), default="f16", help="of the KV cache, for `speed` (%(default)s)")
    add("--llama-cpp", type=Path, metavar="DIR", help="sources of llama.cpp, to compile without the network")
    add("--home", type=Path, default=Path(".conch/cards"), metavar="DIR", help="(%(default)s)")
    add("--report", type=Path, default=Path("cards-report"), metavar="DIR", help="(%(default)s)")
    return found


def _run(run: Run, report: Report) -> str:
    """Run the steps, and return the reason of an early end."""
    ended = ""
    for plan in STEPS:
        try:
            with report.step(plan.name, plan.what) as step:
                if ended:
                    raise LeftOut(ended)
                plan.run(run, step)
        except KeyboardInterrupt:
            ended = _INTERRUPTED
        except UnmetNeeds as exc:
            ended = f"{plan.name}: {exc}"
    return ended


if __name__ == "__main__":
    sys.exit(main())
