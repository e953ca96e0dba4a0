"""Settings of all tests: grpc without fork handlers; property tests with the same examples in every run."""

from __future__ import annotations

import contextlib
import os

# The tokenizer stage forks. A fork of the tests' process, which has used grpc, would end in grpc's own fork handlers.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

with contextlib.suppress(ModuleNotFoundError):  # the GPU acceptance kit runs tests on machines without hypothesis
    from hypothesis import HealthCheck, settings

    # On a busy machine the health check for slow generation would fail a test.
    slow = (HealthCheck.too_slow,)
    settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=slow)
    settings.load_profile("repeatable")
