"""Records the tests of pytest as checks of a step."""

from __future__ import annotations

import pytest

from tests.workshop.gpu_acceptance.report import Check, Step
from tests.workshop.gpu_acceptance.subject import Subject


class Recorder:
    """A plugin of pytest that gives the tests their subject, and puts the outcome of each test into a step."""

    def __init__(self, step: Step, subject: Subject) -> None:
        self._step, self._subject = step, subject
        self._names: dict[str, str] = {}

    @pytest.fixture(scope="session")
    def subject(self) -> Subject:
        """The served model."""
        return self._subject

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """Name tests by their docstring, which is a claim, or by their own name."""
        self._names = {item.nodeid: item.function.__doc__ or item.name for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the call of a test, and a failed or skipped set-up."""
        if report.when != "call" and report.passed:
            return
        if report.passed:
            detail = str(dict(report.user_properties).get("detail", ""))
        else:
            detail = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext.splitlines()[-1]
        self._step.checks.append(Check(self._names[report.nodeid], report.outcome, detail, report.duration))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record files that cannot be imported, for example without a library."""
        if report.failed:
            self._step.checks.append(Check(report.nodeid, "failed", report.longreprtext.splitlines()[-1], 0.0))
