"""The steps of a self-check, each tried whatever became of the one before it where that is possible."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import huggingface_hub

from build_engines.artifact import Manifest
from build_engines.model_entry import ModelEntry
from build_engines.planner.report import plan_lines
from build_engines.planner.sizing import Plan
from build_engines.progress import elapsed_text
from build_engines.selfcheck.client import CheckFailed, Client
from build_engines.selfcheck.command import lines_of, run_shown, tail
from build_engines.selfcheck.figures import smoke_figures
from build_engines.selfcheck.machine_facts import machine_facts, tensorrt_llm_summary, used_gpu_bytes
from build_engines.selfcheck.observations import Subject, chat
from build_engines.selfcheck.order import ALIAS, Order
from build_engines.selfcheck.report import Finding, Report, Section, Verdict
from build_engines.selfcheck.server import Server, serving
from build_engines.selfcheck.table import walk_table
from build_engines.selfcheck.unproved import observe_all

_REPORT_WIDTH = 100
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)(KEY|PAT|PASS|AUTH)$", re.IGNORECASE)


@dataclass(slots=True)
class _Found:
    """What one step leaves for the next ones; None: it was not reached."""

    plan: Plan | None = None
    artifact: Path | None = None


class SelfCheck:
    """One self-check.

    Args:
        order: what to check.
        prepare: called with the repository before it is served; the tests put their double of TensorRT-LLM there.
    """

    def __init__(self, order: Order, prepare: Callable[[Path], None] | None = None) -> None:
        """Choose the model.

        Raises:
            BuildError: the catalog has no such model.
        """
        self._order, self._prepare = order, prepare
        self._entry, self._checkpoint = order.chosen()
        self._found = _Found()
        summary = tensorrt_llm_summary()
        self._report = Report(_headline(self._entry, order, summary))

    def run(self) -> bool:
        """Do every step and write the report; return whether everything passed."""
        order = self._order
        order.report_dir.mkdir(parents=True, exist_ok=True)
        order.state_dir.mkdir(parents=True, exist_ok=True)
        _say(self._report.headline)
        self._try("Machine", lambda: Section(facts=machine_facts()))
        self._try("Plan", self._plan)
        self._try("Build", self._build)
        if self._found.artifact is not None:
            self._try("Verify", self._verify)
            self._serve()
        for name in ("Verify", "Server"):
            if name not in [section.title for section in self._report.sections]:
                self._add(Section(title=name, findings=[Finding(name, Verdict.NOT_TRIED, "nothing was built")]))
        _say(f"report: {order.report_dir / 'report.md'}")
        return self._report.has_passed

    def _plan(self) -> Section:
        self._found.plan = self._order.plan(self._entry)
        return Section(lines=list(plan_lines(self._found.plan, _REPORT_WIDTH)))

    def _build(self) -> Section:
        log = self._log("build")
        status = run_shown(self._order.build_arguments(self._entry, self._checkpoint), log)
        artifacts = [Path(line.split(maxsplit=1)[1]) for line in lines_of(log) if line.startswith("artifact ")]
        if status or not artifacts:
            return Section(findings=[Finding("build", Verdict.FAILED, f"exit status {status}")], lines=tail(log))
        self._found.artifact = artifacts[0]
        manifest = Manifest.load(artifacts[0])
        sizes = {name: f"{(artifacts[0] / name).stat().st_size:,} bytes" for name in manifest.files}
        facts = {
            "key": manifest.key,
            **{f"requires {name}": value for name, value in manifest.requires.items()},
            **sizes,
        }
        return Section(findings=[Finding("build", Verdict.PASSED)], facts=facts, lines=tail(log))

    def _verify(self) -> Section:
        log = self._log("verify")
        status = run_shown(["-m", "build_engines", "verify", str(self._found.artifact)], log)
        verdict = Verdict.FAILED if status else Verdict.PASSED
        return Section(findings=[Finding("verify", verdict)], lines=tail(log))

    def _serve(self) -> None:
        repository, log = self._order.state_dir / "repository", self._log("serve")
        if self._prepare is not None:
            self._prepare(repository)
        before = used_gpu_bytes()
        started = time.monotonic()
        try:
            with serving(repository, self._order.state_dir, log, self._order.ready_timeout_s) as server:
                self._try("Server", lambda: self._server(server))
                self._try("Memory", lambda: self._memory(before))
                self._ask(server)
            self._try("Last lines of the server", lambda: Section(lines=tail(log)))
        except Exception as exc:
            failed = Finding("the server starts and serves", Verdict.FAILED, str(exc))
            duration_s = time.monotonic() - started
            self._add(Section(title="Server", findings=[failed], lines=tail(log), duration_s=duration_s))

    def _ask(self, server: Server) -> None:
        manifest = Manifest.load(self._artifact())
        client = Client(server.url, manifest.model_id)

        def subject() -> Subject:
            return Subject.of(client, manifest.eos_token_ids, manifest.context_window)

        self._try("Chat", lambda: Section(findings=[Finding("a chat", Verdict.PASSED, chat(subject()))]))
        self._try("Figures (a smoke test, no benchmark)", lambda: Section(findings=smoke_figures(client)))
        self._try("Not proved on a GPU", lambda: Section(findings=list(observe_all(subject(), self._order.backend))))
        self._try("The API's table of parameters", lambda: self._table(server, manifest.model_id))

    def _table(self, server: Server, model: str) -> Section:
        findings = walk_table(server.url, model, ALIAS, self._order.report_dir)
        lines = () if self._order.is_of_demo else (_WEAK_MODELS,)
        return Section(findings=findings, lines=lines)

    def _server(self, server: Server) -> Section:
        facts = {"ready after": f"{server.ready_after_s:.1f} s", "Triton": server.triton_version()}
        return Section(findings=[Finding("the server is ready", Verdict.PASSED)], facts=facts)

    def _memory(self, before: Sequence[int] | None) -> Section:
        after, planned = used_gpu_bytes(), self._found.plan
        facts = {"taken before the server, each GPU": _gigabytes(before), "taken when it is ready": _gigabytes(after)}
        if planned is not None:
            memory = planned.memory
            facts |= {
                "planned: weights": _gigabytes([memory.weights_bytes]),
                "planned: workspace": _gigabytes([memory.workspace_bytes]),
                "planned: runtime": _gigabytes([memory.reserve_bytes]),
                "planned: KV cache": _gigabytes([memory.kv_cache_bytes]),
            }
        return Section(facts=facts)

    def _artifact(self) -> Path:
        assert self._found.artifact is not None
        return self._found.artifact

    def _log(self, name: str) -> Path:
        return self._order.report_dir / f"{name}.log"

    def _try(self, title: str, step: Callable[[], Section]) -> None:
        """Do a step, and add what it found, or why it failed."""
        _say(title)
        started = time.monotonic()
        try:
            section = step()
        except CheckFailed as exc:
            section = Section(findings=[Finding(title, Verdict.FAILED, str(exc))])
        except Exception as exc:
            failed = Finding(title, Verdict.FAILED, f"{type(exc).__name__}: {exc}")
            section = Section(findings=[failed], lines=traceback.format_exc(limit=-3).splitlines())
        self._add(replace(section, title=title, duration_s=time.monotonic() - started))

    def _add(self, section: Section) -> None:
        """Add a section, and write the report as it is so far: it is there whatever ends this process."""
        self._report.sections.append(section)
        self._report.write(self._order.report_dir, secrets_of(os.environ))
        for finding in section.findings:
            if finding.verdict is Verdict.FAILED:
                _say(f"  FAILED {finding.name}: {finding.detail}")
        _say(f"  {elapsed_text(section.duration_s)}")


_WEAK_MODELS = (
    "Rows of tools, of a continued message and of a suffix rest on what the model says, which a small model may get "
    "wrong; the demo model, which is checked where no MODEL is named, knows all of it."
)


def _headline(entry: ModelEntry, order: Order, summary: str | None) -> str:
    what = f"{entry.model_id} on TensorRT-LLM, backend {order.backend}"
    if summary is None:
        return f"{what}: TensorRT-LLM is not installed"
    if "test double" in summary.lower():
        return f"{what}: A DOUBLE, NOT TensorRT-LLM: nothing here was computed by it ({summary})"
    return f"{what} ({summary})"


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return what a report must not say: values whose names are those of secrets, and the hub's token."""
    named = [value for name, value in environment.items() if _SECRET_NAME.search(name)]
    found = {secret for secret in (*named, huggingface_hub.get_token()) if secret and len(secret) > 7}
    return sorted(found, key=len, reverse=True)  # one may begin like another


def _gigabytes(sizes: Sequence[int] | None) -> str:
    return "not told" if sizes is None else ", ".join(f"{size / 1e9:,.1f} GB" for size in sizes)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
