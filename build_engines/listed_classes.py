"""The classes of models that releases of TensorRT-LLM list for their PyTorch backend."""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml

from build_engines.errors import BuildError


@cache
def classes_by_release() -> dict[str, list[str]]:
    """Return the classes of each release with a list, the oldest first."""
    text = resources.files("build_engines").joinpath("listed_classes.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)  # type: ignore[no-any-return]


def releases_with(class_name: str) -> tuple[str, ...]:
    """Return the releases that list a class, the oldest first."""
    return tuple(release for release, names in classes_by_release().items() if class_name in names)


def check_listed(model_id: str, class_name: str, version: str | None = None) -> None:
    """Check that a release of TensorRT-LLM lists a class.

    Args:
        version: of the release; None: any. For a release without a list, a class passes if any list has it.

    Raises:
        BuildError: names the class, the release, and what serves the model.
    """
    releases, release = releases_with(class_name), (version or "").partition("+")[0]
    if release in releases or (releases and release not in classes_by_release()):
        return
    where = f"TensorRT-LLM {release or ' and '.join(classes_by_release())}"
    cpu = f"`conch build {model_id} --runtime llama_cpp` serves it on a CPU"
    remedy = f"{' and '.join(releases)} has it, or {cpu}" if releases else cpu
    raise BuildError(f"{model_id}: the PyTorch backend of {where} lists no {class_name}: {remedy}")
