"""The package of the chart, and the workflow that publishes it together with the images."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import helm_python
import pytest
import yaml

from helm.generate import examples as generated
from tests.helm.cases import CASES, EXAMPLE_FILES, with_named_secrets
from tests.helm.chart import CHART, NAMESPACE, RELEASE, metadata

PROJECT = CHART.parent
WORKFLOW = (PROJECT / ".github/workflows/publish.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package that `make chart` writes."""
    folder = tmp_path_factory.mktemp("dist")
    # --old-file: without a new installation of the environment of the tests.
    command = ["make", "chart", "--old-file=.venv/test.stamp", f"DIST={folder}", f"PYTHON_IN_VENV={sys.executable}"]
    subprocess.run(command, cwd=PROJECT, env={"PATH": os.environ["PATH"]}, timeout=120, check=True)
    [path] = folder.iterdir()
    return path


def test_the_package_has_all_examples_and_no_generators(package: Path) -> None:
    with tarfile.open(package) as archive:
        assert all(member.isfile() for member in archive)
        texts = {name.removeprefix("conch/"): archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    folders = {".helmignore", "Chart.yaml", "README.md", "values.yaml", "values.schema.json"}
    assert {name.partition("/")[0] for name in texts} == folders | {"examples", "files", "templates"}
    assert [name for name in texts if name.endswith((".py", ".pyc"))] == ["files/check_api.py"]
    examples = {f"examples/{path.name}": path.read_bytes() for path in EXAMPLE_FILES}
    examples |= {f"examples/{name}": text.encode() for name, text in generated.examples().items()}
    assert {name: text for name, text in texts.items() if name.startswith("examples/")} == examples


@pytest.mark.parametrize("name", ["default-values", "nodes-values"])
def test_the_package_renders_as_the_checkout_does(name: str, package: Path) -> None:
    values = with_named_secrets(CASES[name])
    packaged, checkout = helm_python.Chart.load_archive(package.read_bytes()), helm_python.Chart.load(CHART)
    assert packaged.schema == checkout.schema
    assert packaged.render(values, name=RELEASE, namespace=NAMESPACE) == checkout.render(
        values, name=RELEASE, namespace=NAMESPACE
    )


@pytest.mark.parametrize(("tag", "is_accepted"), [("v{}", True), ("v{}0", False), ("{}", False)])
def test_the_workflow_accepts_only_the_tag_of_the_version(tag: str, is_accepted: bool) -> None:
    [step] = [
        each
        for each in yaml.safe_load(WORKFLOW)["jobs"]["publish"]["steps"]
        if "GITHUB_REF_NAME" in each.get("run", "")
    ]
    environment = {"PATH": os.environ["PATH"], "GITHUB_REF_NAME": tag.format(metadata()["appVersion"])}
    done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=PROJECT, env=environment, timeout=60, check=False)
    assert (done.returncode == 0) is is_accepted
