"""Builds of a tiny model in this process, which take a tenth of the time of a command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from build_engines.__main__ import main
from tests.build_engines.tensorrt_llm.builder import Builder


@dataclass(frozen=True)
class Here:
    """Runs commands in this process."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def command(self, builder: Builder, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Run a command where a builder finds its tools; return status, output and errors."""
        for name, value in builder.environment(**environment).items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.syspath_prepend(str(builder.home.parent / "site"))
        self.capsys.readouterr()
        status = main(arguments)
        return status, *self.capsys.readouterr()

    def build(self, builder: Builder, *extra: str, **environment: str) -> Path:
        """Build, and return the only artifact."""
        status, _, err = self.command(builder, *builder.arguments(*extra), **environment)
        assert status == 0, err
        [folder] = builder.artifacts()
        return folder

    def refusal(self, builder: Builder, *extra: str, **environment: str) -> str:
        """Return the one line of a build that fails, which leaves no artifact."""
        status, _, err = self.command(builder, *builder.arguments(*extra), **environment)
        assert (status, builder.artifacts()) == (1, [])
        [line] = [line for line in err.splitlines() if line.startswith("error: ")]
        return line


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """A tiny model for two GPUs."""
    return Builder.make(tmp_path)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """This process."""
    return Here(monkeypatch, capsys)
