"""Settings of all tests: grpc without fork handlers; property tests with the same examples in every run."""

from __future__ import annotations

import contextlib
import os

# The tokenizer stage forks. A fork of the tests' process, which has used grpc, would end in grpc's own fork handlers.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

with contextlib.suppress(ModuleNotFoundError):  # `selfcheck` runs tests of the API on GPU machines, which lack it
    from hypothesis import settings

    settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
    settings.load_profile("repeatable")
