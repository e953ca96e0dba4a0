"""The first hour on a GPU host: a report of each step, to send back.

docs/gpu.md describes it. The exit status is 0 if no step failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path

from build_engines.gpus import GPUS
from tests.tensorrt_llm_artifact import DEMO_CATALOG
from tests.workshop.gpu_acceptance.report import LeftOut, Report, UnmetNeeds, pack
from tests.workshop.gpu_acceptance.servers import Host, tensorrt_llm_summary
from tests.workshop.gpu_acceptance.steps import STEPS, downloads

_INTERRUPTED = "the run was interrupted"
_INTERRUPTED_STATUS = 130  # as shells have it


def main() -> int:
    """Run the steps and return the exit status."""
    options = parser().parse_args()
    report = Report(options.report / "report.md", f"TensorRT-LLM: {tensorrt_llm_summary()}", os.environ)
    options.home.mkdir(parents=True, exist_ok=True)
    options.report.mkdir(parents=True, exist_ok=True)
    is_interrupted = _run(options, report)
    sys.stderr.write(f"report: {report.path}, packed for its readers: {pack(options.report, os.environ)}\n")
    return _INTERRUPTED_STATUS if is_interrupted else int(report.has_failed)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    names = [step.name for step in STEPS]
    lines = [f"  {step.name:12}{step.minutes:4g} min  {step.what}" for step in STEPS]
    found = argparse.ArgumentParser(
        prog="python3 -m tests.workshop.gpu_acceptance",
        description=__doc__,
        epilog="steps, on 8 x H100 and without downloads:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("model", nargs="?", default="demo", metavar="MODEL", help="the small model (this project's demo model)")
    add("--only", action="append", choices=names, metavar="STEP", help="run only this step; repeatable")
    add("--skip", action="append", choices=names, metavar="STEP", default=[], help="leave out a step; repeatable")
    add("--checkpoint", metavar="DIR", help="of MODEL, or OWNER/NAME@REVISION")
    add("--adapter", action="append", default=[], metavar="NAME=DIR", help="of MODEL (the demo model's); repeatable")
    add("--speed-model", default="qwen2.5:7b", metavar="MODEL", help="for `schedulers` and `peer` (%(default)s)")
    add("--large-model", default="llama3.3:70b", metavar="MODEL", help="with a ready FP8 checkpoint (%(default)s)")
    add("--catalog", metavar="FILE", default=str(DEMO_CATALOG), help="with further models")
    add("--gpu", choices=sorted(GPUS), help="kind of GPU to build for (this machine's)")
    add("--max-seq-len", metavar="N", help="tokens of prompt and completion of MODEL together (the catalog's)")
    add("--tensorrt-llm-examples", metavar="DIR", help="TensorRT-LLM's repository, for the engine")
    add("--quick", action="store_true", help="a trial of the kit, too short for its figures to mean anything")
    add("--ready-timeout-s", type=float, default=1800, metavar="S", help="for a model to load (%(default)s)")
    add("--home", type=Path, default=Path(".conch/gpu-acceptance"), metavar="DIR", help="(%(default)s)")
    add("--report", type=Path, default=Path("gpu-acceptance-report"), metavar="DIR", help="(%(default)s)")
    return found


def _run(options: argparse.Namespace, report: Report) -> bool:
    """Run the chosen steps, leave out the others with a reason, and return whether Ctrl-C ended the run."""
    chosen = [
        step.name for step in STEPS if step.name in (options.only or [step.name]) and step.name not in options.skip
    ]
    minutes = sum(step.minutes for step in STEPS if step.name in chosen)
    report.estimate = f"about {minutes:g} minutes on 8 x H100, and the time of the downloads"
    sys.stderr.write(f"{len(chosen)} steps: {report.estimate}\n")
    ended = ""  # the reason
    with closing(Host(options)) as host, host.downloading(downloads(host, chosen)):
        for step in STEPS:
            try:
                with report.step(step.name, step.what) as record:
                    if ended:
                        raise LeftOut(ended)
                    if step.name not in chosen:
                        raise LeftOut("--only or --skip")
                    step.run(host, record)
            except KeyboardInterrupt:
                ended = _INTERRUPTED
            except UnmetNeeds as exc:
                ended = f"{step.name}: {exc}"
    if ended:
        sys.stderr.write(f"ended early: {ended}\n")
    return ended == _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
