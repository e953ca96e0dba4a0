"""The self-check with the double of TensorRT-LLM in the engine stages: `python -m tests.doubles.selfcheck ARGUMENTS`.

Whoever runs it puts tests/doubles/bin on PATH and tests/doubles/python on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import logging
import sys

from build_engines.commands import selfcheck
from build_engines.selfcheck.run import SelfCheck
from tests.tensorrt_llm_artifact import install_double


def main() -> int:
    """Run it as the command does."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser()
    selfcheck.add_to(parser.add_subparsers())
    order = selfcheck.order_from(parser.parse_args(["selfcheck", *sys.argv[1:]]))
    return 0 if SelfCheck(order, install_double).run() else 1


if __name__ == "__main__":
    sys.exit(main())
