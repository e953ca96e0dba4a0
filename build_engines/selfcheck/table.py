"""The API's table of parameters, walked against the running server by the tests of a clone."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from build_engines.selfcheck.command import run_shown
from build_engines.selfcheck.report import Finding, Verdict

_ROOT = Path(__file__).parents[2]
_TESTS = Path("tests") / "integration" / "test_parameters.py"
_EFFECTS = "test_the_tensorrt_llm_runtime_shows_the_same_effects"
_REFUSALS = "test_a_field_that_tensorrt_llm_lacks_is_refused"
_LIBRARIES = ("pytest", "pytest_asyncio", "openai")
_MAX_MESSAGE = 300


def why_no_table(root: Path = _ROOT) -> str | None:
    """Return why the table cannot be walked here and what to do; None: it can."""
    if not (root / _TESTS).is_file():
        return f"{root / _TESTS} is not here: install with `pip install -e` from a clone, and run it again"
    missing = [library for library in _LIBRARIES if importlib.util.find_spec(library) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install {' '.join(missing).replace('_', '-')}, run it again"
    return None


def walk_table(url: str, model: str, alias: str, folder: Path) -> list[Finding]:
    """Return each row with what came of it.

    Args:
        url: of the running frontend.
        model: the model's id.
        alias: a further name of it.
        folder: for the log, table.log.
    """
    reason = why_no_table()
    if reason is not None:
        return [Finding("the table of parameters", Verdict.FAILED, reason)]
    results = (folder / "table.xml").resolve()
    results.unlink(missing_ok=True)
    arguments = [
        "-m",
        "pytest",
        "-v",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-W",
        "default",
        f"--junitxml={results}",
    ]
    arguments += [f"--server={url}", f"--server-model={model}", f"--server-alias={alias}"]
    arguments += [f"{_TESTS}::{name}" for name in (_EFFECTS, _REFUSALS)]
    status = run_shown(arguments, folder / "table.log", _ROOT)
    findings = list(read_results(results)) if results.is_file() else []
    if not findings or (status and not any(finding.verdict is Verdict.FAILED for finding in findings)):
        findings.append(Finding("pytest", Verdict.FAILED, f"exit status {status}: see table.log"))
    return findings


def read_results(path: Path) -> Iterator[Finding]:
    """Yield the rows that a file of pytest's results has."""
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.get("name", "")
        row = name.partition("[")[2].removesuffix("]") or name
        passed = Verdict.REFUSED if name.startswith(_REFUSALS) else Verdict.PASSED
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if bad is None:
            yield Finding(row, passed, duration_s=float(case.get("time", "0")))
        else:
            message = " ".join(bad.get("message", "").split())[:_MAX_MESSAGE]
            verdict = Verdict.NOT_TRIED if bad.tag == "skipped" else Verdict.FAILED
            yield Finding(row, verdict, message, float(case.get("time", "0")))
