"""What a self-check found: sections of findings, as Markdown for people and JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Verdict(StrEnum):
    """What came of one thing that was tried."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"  # as the table of parameters says it must be
    OBSERVED = "observed"  # a figure, or something that is right either way
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried, or why it was not."""

    name: str
    verdict: Verdict
    detail: str = ""
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One step of the self-check."""

    title: str = ""  # which step it was; who adds it to a report says so
    findings: Sequence[Finding] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    lines: Sequence[str] = ()  # of a program's output
    duration_s: float = 0.0

    @property
    def num_failed(self) -> int:
        """How many of its findings failed."""
        return sum(finding.verdict is Verdict.FAILED for finding in self.findings)


@dataclass(slots=True)
class Report:
    """The sections so far."""

    headline: str
    sections: list[Section] = field(default_factory=list)

    @property
    def has_passed(self) -> bool:
        """Whether nothing failed."""
        return not any(section.num_failed for section in self.sections)

    def write(self, folder: Path, secrets: Sequence[str]) -> None:
        """Write report.md and report.json into a folder, without any of the secrets."""
        folder.mkdir(parents=True, exist_ok=True)
        described: dict[str, Any] = {"has_passed": self.has_passed, **dataclasses.asdict(self)}
        for name, text in (
            ("report.md", "\n".join(self._markdown()) + "\n"),
            ("report.json", json.dumps(described, indent=2, ensure_ascii=False) + "\n"),
        ):
            (folder / name).write_text(without(text, secrets), encoding="utf-8")

    def _markdown(self) -> Iterator[str]:
        yield from ("# Self-check", "", f"**{self.headline}**", "")
        yield "Everything passed." if self.has_passed else f"Failed: {', '.join(self._failed())}."
        for section in self.sections:
            yield from ("", f"## {section.title}", "")
            yield f"{_count(section)} {section.duration_s:.1f} s.".lstrip()
            if section.facts:
                rows = section.facts.items()
                yield from ("", "| what | found |", "| --- | --- |", *(f"| {_cell(a)} | {_cell(b)} |" for a, b in rows))
            if section.findings:
                yield from ("", "| what | verdict | detail |", "| --- | --- | --- |")
                for found in section.findings:
                    yield f"| {_cell(found.name)} | {found.verdict} | {_cell(_detail(found))} |"
            if section.lines:
                yield from ("", "```", *section.lines, "```")

    def _failed(self) -> Iterator[str]:
        for section in self.sections:
            if section.num_failed:
                yield f"{section.title} ({section.num_failed})"


def without(text: str, secrets: Sequence[str]) -> str:
    """Return a text in which nobody can read the secrets."""
    for secret in secrets:
        text = text.replace(secret, "[left out]")
    return text


def _count(section: Section) -> str:
    verdicts = [finding.verdict for finding in section.findings]
    return ", ".join(f"{verdicts.count(each)} {each}" for each in Verdict if each in verdicts) + "." if verdicts else ""


def _detail(finding: Finding) -> str:
    duration = "" if finding.duration_s is None else f"{finding.duration_s:.2f} s"
    return ", ".join(part for part in (finding.detail, duration) if part)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
