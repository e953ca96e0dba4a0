"""Settings of all tests: which run together, grpc without fork handlers, property tests with the same examples."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile

import pytest

# The tokenizer stage forks. A fork of the tests' process, which has used grpc, would end in grpc's own fork handlers.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# No test writes into the home of the person who runs it.
os.environ["CONCH_HOME"] = os.path.join(tempfile.gettempdir(), f"conch-of-tests-{os.getuid()}")

with contextlib.suppress(ModuleNotFoundError):  # the GPU acceptance kit runs tests on machines without hypothesis
    from hypothesis import HealthCheck, settings

    # On a busy machine the health check for slow generation would fail a test.
    slow = (HealthCheck.too_slow,)
    settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=slow)
    settings.load_profile("repeatable")

# Fixtures that run servers for a session, and the group of the tests that use them. A group runs in one process, so no
# server starts twice.
_GROUPS = {
    "stack": "stack",
    "tensorrt_llm_api": "tensorrt_llm",
    "tensorrt_llm_stack": "tensorrt_llm",
    "pair": "pair",
    "server": "server",
    "paced_stack": "paced",
}


@pytest.fixture(scope="session")
def servers() -> None:
    """Mark the tests that use it, or fixtures with it, as `server`: `make quick` omits them.

    They start servers, builds that are killed, or engines that compute for seconds.
    """


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start servers, and name the group in which each one runs."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "servers" in names:
            item.add_marker(pytest.mark.server)
        is_real = item.path.parent.name == "integration"
        groups = (group for name, group in _GROUPS.items() if is_real and name in names)
        item.add_marker(pytest.mark.xdist_group(next(groups, str(item.path))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the Debian packages that skipped tests need, and the tests that need root."""
    skipped = terminalreporter.stats.get("skipped", ())
    if names := [report.nodeid for report in skipped if "needs root" in str(report.longrepr)]:
        terminalreporter.write_line(f"{len(names)} tests were not run, they need root: {', '.join(names)}", red=True)
    reasons = [str(report.longrepr) for report in skipped]
    lacking = [reason for reason in reasons if "needs the Debian package" in reason]
    packages = {name for reason in lacking for name in re.findall(r"[a-z-]+", reason.partition("Debian package")[2])}
    packages -= {"s", "and"}
    if lacking:
        line = f"{len(lacking)} tests were not run: sudo apt-get install {' '.join(sorted(packages))}"
        terminalreporter.write_line(line, red=True)
