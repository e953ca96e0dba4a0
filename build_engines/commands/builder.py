"""The base of the builders that the table of runtimes names."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from build_engines.artifact import serve_as
from build_engines.lock import lock_path, locked
from build_engines.render import ServeOptions
from build_engines.serving import Serving


@dataclass(frozen=True, kw_only=True)
class Builder(ABC):
    """Builds a model for a runtime, by the command line with its pairs parsed.

    The constructor checks the options that need neither the catalog nor a file of the model.
    """

    options: argparse.Namespace
    runtime_options: Mapping[str, str]
    adapters: Mapping[str, Path]
    serving: Serving
    serve_options: ServeOptions

    @abstractmethod
    def build(self) -> Path | None:
        """Return the artifact; None: only the plan is shown, or another process returns it.

        Raises:
            BuildError: one line with the input and the rule, or with a tool's failure and its usual cause.
        """

    def name_stored(self, artifact_dir: Path, serving: Serving) -> None:
        """Give an artifact of the store the names and defaults of the command line, if it has some."""
        if self.options.alias or self.options.default:
            with locked(lock_path(artifact_dir), f"names {artifact_dir.name}"):
                serve_as(artifact_dir, serving)
