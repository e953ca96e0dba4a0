"""A long run of the mix: `python -m tests.exactness --minutes 60`. It ends at the first difference."""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from contextlib import closing
from pathlib import Path

from model_repository.engine import engine, output_streams
from model_repository.runtimes import NGRAM
from tests.exactness.answers import Difference
from tests.exactness.mix import Mix, build_demo

_NUM_REQUESTS = 200  # of a seed


def main() -> int:
    """Run seeds in turn on an engine with one context, and on one with two that drafts; return 1 after a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.exactness", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=1000, help="the first one; later ones count up (1000)")
    options = parser.parse_args()
    for module in (engine, output_streams):  # they report requests that are refused or hang up, as the mix wants it
        module.logger.disabled = True
    end_s = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="exactness-") as folder:
        artifact = build_demo(Path(folder))
        with closing(Mix(artifact)) as one, closing(Mix(artifact, num_contexts=2, speculative=NGRAM)) as two:
            for seed, mix in zip(itertools.count(options.seed), itertools.cycle((one, two)), strict=False):
                try:
                    mix.run(seed, _NUM_REQUESTS)
                except Difference as error:
                    print(f"seed {seed}: {error}")
                    return 1
                num_equal = one.comparison.num_equal + two.comparison.num_equal
                exceptions = one.comparison.exceptions + two.comparison.exceptions
                print(f"seed {seed}: {num_equal} answers equal, {len(exceptions)} exceptions", flush=True)
                if time.monotonic() > end_s:
                    break
            print(*exceptions, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
