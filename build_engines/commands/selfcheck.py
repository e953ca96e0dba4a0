"""`selfcheck`: everything once on this machine, and a report of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from build_engines.commands.plan import add_catalog_option
from build_engines.errors import BuildError
from build_engines.gpus import GPUS
from build_engines.model_entry import Precision
from build_engines.selfcheck.order import Order
from build_engines.selfcheck.run import SelfCheck
from build_engines.signals import ended_by_signals
from model_repository.engine.tensorrt_llm.options import Backend

_DESCRIPTION = """\
Build the smallest of the models for TensorRT-LLM on this machine, serve it, ask it a chat question, walk the API's
table of parameters, look at what is not proved on a GPU yet, take a few figures, and write a report to send back.

Without MODEL it is the demo model of this project, whose checkpoint is here: minutes, and nothing is downloaded but
what the build itself needs. The table of parameters takes a clone, and pytest, pytest-asyncio and openai beside it."""
_EPILOG = """\
examples:
  selfcheck --tensorrt-llm-examples TensorRT-LLM
  selfcheck --backend pytorch
  selfcheck llama3.2:1b --checkpoint meta-llama/Llama-3.2-1B-Instruct@main --tensorrt-llm-examples TensorRT-LLM

Status 0: everything passed. The report has no secrets of the environment in it, and the words that the model said to
questions of the check's own. REPORT/*.log are whole; read them before you send them too."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "selfcheck",
        help="build, serve and check a small model on this machine, and write a report",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("models", nargs="*", metavar="MODEL", help="names of the catalog; the smallest is taken (the demo model)")
    add(
        "--checkpoint",
        action="append",
        default=[],
        metavar="DIR",
        help="or OWNER/NAME@REVISION: of each MODEL, in the same order (the models' own repositories)",
    )
    add_catalog_option(command)
    add("--backend", choices=[*map(str, Backend)], default=str(Backend.ENGINE), help="(%(default)s)")
    add("--gpu", choices=sorted(GPUS), help="kind of GPU to build for (this machine's)")
    add("--gpus", type=int, metavar="N", help="how many (as few as fit well)")
    add("--precision", choices=[*map(str, Precision)], help="of the matrices (16 bit, as the model is)")
    add("--max-seq-len", type=int, metavar="N", help="tokens of prompt and completion together (the catalog's)")
    add("--max-batch-size", type=int, metavar="N", help="sequences that the engine is built for (the planner's)")
    add("--tensorrt-llm-examples", type=Path, metavar="DIR", help="as for `build`")
    add("--ready-timeout-s", type=float, default=1800, metavar="S", help="for the model to load (%(default)s)")
    add(
        "--state-dir",
        type=Path,
        default=Path(".conch/selfcheck"),
        metavar="DIR",
        help="for what is built (%(default)s)",
    )
    add("--report", type=Path, default=Path("selfcheck-report"), metavar="DIR", help="where it goes (%(default)s)")
    command.set_defaults(command=_selfcheck)


def _selfcheck(options: argparse.Namespace) -> None:
    order = order_from(options)
    with ended_by_signals():
        has_passed = SelfCheck(order).run()
    print(order.report_dir / "report.md")
    if not has_passed:
        raise BuildError(f"not everything passed: {order.report_dir / 'report.md'} says what")


def order_from(options: argparse.Namespace) -> Order:
    """Return what the command line asks for."""
    return Order(
        models=options.models,
        checkpoints=options.checkpoint,
        catalogs=options.catalog,
        backend=Backend(options.backend),
        gpu=options.gpu,
        num_gpus=options.gpus,
        precision=options.precision,
        max_seq_len=options.max_seq_len,
        max_batch_size=options.max_batch_size,
        examples=options.tensorrt_llm_examples,
        state_dir=options.state_dir,
        report_dir=options.report,
        ready_timeout_s=options.ready_timeout_s,
    )
