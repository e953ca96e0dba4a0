"""The report of a run on a machine of others, in Markdown. It is written after each step: a crash loses one step."""

from __future__ import annotations

import io
import re
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_URL_USER = re.compile(r"(\w+://)[^/\s@]+@")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)(KEY|PAT|PASS|AUTH)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Check:
    """One test on the running server."""

    name: str
    outcome: str  # passed, failed or skipped, as pytest says
    detail: str
    duration_s: float


class LeftOut(Exception):
    """A step cannot run here, or is not wanted; the message is the reason."""


class UnmetNeeds(Exception):
    """The machine or its image lacks something without which no later step can pass; the message names it."""


@dataclass(slots=True)
class Step:
    """One step of the run. A step fails with an exception or with a failed check."""

    name: str
    what: str  # it does, in one line
    lines: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    error: str = ""
    left_out: str = ""  # the reason
    duration_s: float = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether the step, or one of its checks, failed."""
        return bool(self.error) or any(check.outcome == "failed" for check in self.checks)

    @property
    def outcome(self) -> str:
        """The outcome in words: a part of a step may be left out after other parts."""
        word = "FAILED" if self.has_failed else "passed"
        if self.left_out:
            return f"{word}, in part left out" if self.checks else "left out"
        return word

    def check(self, name: str, is_right: bool, detail: str, duration_s: float = 0.0) -> None:
        """Add a check, and show it."""
        outcome = "passed" if is_right else "failed"
        sys.stderr.write(f"    {outcome}: {name}: {detail}\n")
        self.checks.append(Check(name, outcome, detail, duration_s))


@dataclass(slots=True)
class Report:
    """The steps so far, written to `path`."""

    path: Path
    headline: str
    environment: Mapping[str, str]  # values whose names are those of secrets are left out of the report
    steps: list[Step] = field(default_factory=list)
    estimate: str = ""  # of the time
    title: str = "GPU acceptance"

    @property
    def has_failed(self) -> bool:
        """Whether a step failed."""
        return any(step.has_failed for step in self.steps)

    @contextmanager
    def step(self, name: str, what: str) -> Iterator[Step]:
        """Run a step. Its exception goes into the report, and only Ctrl-C and unmet needs leave it, to end the run."""
        step = Step(name, what)
        self.steps.append(step)
        sys.stderr.write(f"{name}: {what}\n")
        started = time.monotonic()
        try:
            yield step
        except LeftOut as exc:
            step.left_out = str(exc)
        except KeyboardInterrupt:
            step.error = "interrupted"
            raise
        except UnmetNeeds:
            raise  # the checks say it
        except Exception as exc:
            step.error = f"{type(exc).__name__}: {exc}"
        finally:
            step.duration_s = time.monotonic() - started
            reason = step.error or step.left_out
            sys.stderr.write(f"  {step.outcome} after {step.duration_s:.1f} s{reason and f': {reason}'}\n")
            self.write()

    def write(self) -> None:
        """Write the report without secrets."""
        text = without_secrets("\n".join(self._lines()) + "\n", self.environment)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text, encoding="utf-8")

    def _lines(self) -> Iterator[str]:
        failed = [step.name for step in self.steps if step.has_failed]
        yield from (f"# {self.title}", "", f"**{self.headline}**", "")
        yield f"Failed: {', '.join(failed)}." if failed else "Everything that ran passed."
        yield f"Seconds: {sum(step.duration_s for step in self.steps):,.0f}; the estimate was {self.estimate}."
        yield from ("", "| step | what it does | outcome | seconds |", "| --- | --- | --- | ---: |")
        for step in self.steps:
            reason = f": {_cell(step.left_out)}" if step.left_out else ""
            yield f"| {step.name} | {step.what} | {step.outcome}{reason} | {step.duration_s:.1f} |"
        for step in self.steps:
            yield from ("", f"## {step.name}", "", f"{step.what}: {step.outcome} after {step.duration_s:.1f} s")
            if step.left_out:
                yield from ("", f"**Left out**: {_cell(step.left_out)}")
            if step.error:
                yield from ("", f"**Failed**: {_cell(step.error)}")
            if step.checks:
                outcomes = [check.outcome for check in step.checks]
                counts = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
                yield from ("", counts, "", "| check | outcome | detail | seconds |", "| --- | --- | --- | ---: |")
                for check in step.checks:
                    yield f"| {_cell(check.name)} | {check.outcome} | {_cell(check.detail)} | {check.duration_s:.2f} |"
            if step.lines:
                yield from ("", "```", *step.lines, "```")


def pack(folder: Path, environment: Mapping[str, str]) -> Path:
    """Pack a report and the logs beside it, all without secrets, and return the archive."""
    archive = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(folder.iterdir()):
            text = without_secrets(path.read_text(encoding="utf-8", errors="replace"), environment).encode()
            entry = tarfile.TarInfo(f"{folder.name}/{path.name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return archive


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """Leave out the values of environment variables that are named like secrets, and passwords in URLs."""
    secrets = [value for name, value in environment.items() if _SECRET_NAME.search(name) and len(value) > 7]
    for secret in sorted(secrets, key=len, reverse=True):  # a secret may be the beginning of another one
        text = text.replace(secret, "[left out]")
    return _URL_USER.sub(r"\1[left out]@", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:500]
