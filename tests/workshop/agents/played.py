"""A server with a model that plays replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from build_engines.render import ServeOptions, render_artifacts, write_repository
from frontend.settings import Settings
from tests.launching import launched, launcher_settings
from tests.workshop.agents import reply_runtime

MODEL = "played"


@contextmanager
def serving(artifacts: Sequence[Path], folder: Path) -> Iterator[str]:
    """Serve artifacts, MODEL's among them, and yield the URL."""
    repository = folder / "repository"
    write_repository(render_artifacts(dict.fromkeys(artifacts, ServeOptions())), repository)
    settings = launcher_settings(repository, Settings())
    with launched(settings, folder / "state", folder / "serve.log") as launcher:
        door = repository / f"{MODEL}__engine" / "1" / "model.py"  # the launcher has compared it with ours
        door.write_text(f"{door.read_text()}\nimport {reply_runtime.__name__}\n")
        launcher.start()
        launcher.wait_until_ready()
        yield launcher.url
