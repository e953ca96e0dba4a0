"""The base of the builders that the table of runtimes names."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.artifact import Manifest, serve_as
from build_engines.lock import lock_path, locked
from build_engines.render import ServeOptions
from build_engines.serving import Loading, Serving


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
        """Give an artifact of the store the names, defaults and loading of the command line, if it has some."""
        has_names = self.options.alias or self.options.default
        if has_names or serving.loading != Loading():
            with locked(lock_path(artifact_dir), f"names {artifact_dir.name}"):
                former = Manifest.load(artifact_dir).serving
                loading = serving.loading.or_else(former.loading)
                serve_as(artifact_dir, replace(serving if has_names else former, loading=loading))
