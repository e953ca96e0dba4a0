"""The models of a store that a server offers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from build_engines import artifact
from build_engines.__main__ import main
from build_engines.errors import BuildError
from build_engines.render import ServeOptions
from build_engines.serving import Loading, Serving
from build_engines.whole_store import offered
from model_repository.model_parameters import Load
from tests.build_engines.test_render import parameters_in
from tests.build_engines.test_render_artifacts import MANIFEST


def store_artifact(
    home: Path,
    model_id: str,
    created: int = 1,
    *,
    aliases: Iterable[str] = (),
    loading: Loading | None = None,
    **changes: Any,
) -> Path:
    folder = home / "artifacts" / f"{model_id}-{created:012}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text("abc")
    serving = Serving.of(aliases, {}, loading or Loading())
    artifact.seal(folder, replace(MANIFEST, model_id=model_id, created=created, serving=serving, **changes))
    return folder


def loads(home: Path, **options: Any) -> dict[str, Load | None]:
    """Return for each artifact when its model is loaded."""
    return {folder.name: each.loading.load for folder, each in offered(home, ServeOptions(**options)).items()}


def test_the_newest_artifact_of_each_model_is_loaded_on_demand(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = store_artifact(tmp_path, "a", 1), store_artifact(tmp_path, "a", 3)
    other = store_artifact(tmp_path, "b", 2)
    assert loads(tmp_path) == {newer.name: Load.DEMAND, other.name: Load.DEMAND}
    assert caplog.messages == []
    (newer / "weights").unlink()
    assert loads(tmp_path) == {other.name: Load.DEMAND, older.name: Load.DEMAND}


def test_an_option_of_a_model_or_of_all_is_before_that(tmp_path: Path) -> None:
    pinned = Loading(load=Load.START, is_pinned=True)
    one, two = store_artifact(tmp_path, "a", 2, loading=pinned), store_artifact(tmp_path, "b")
    assert loads(tmp_path) == {one.name: Load.START, two.name: Load.DEMAND}
    of_all = offered(tmp_path, ServeOptions(loading=Loading(load=Load.START), max_sequences=3))
    assert of_all[one] == ServeOptions(loading=pinned, max_sequences=3)
    assert of_all[two] == ServeOptions(loading=Loading(load=Load.START), max_sequences=3)


def damage(folder: Path) -> None:
    (folder / "weights").write_text("other")


def age(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(f'"format": {artifact.FORMAT}', '"format": 1'))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "weights").unlink(), "weights: missing, build it again"),
        (damage, "weights: differs from its digest"),
        (age, "format 1, expected"),
    ],
)
def test_an_artifact_that_cannot_be_served_is_left_out(
    change: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = store_artifact(tmp_path, "a"), store_artifact(tmp_path, "b")
    change(one)
    assert [*loads(tmp_path)] == [two.name]
    [line] = caplog.messages
    assert line.startswith(f"left out    {one.name}: ") and reason in line
    assert line.endswith(f"and `conch rm {one.name}` removes this one")
    change(two)
    with pytest.raises(BuildError, match="artifacts: there is no artifact that can be served: `conch list` shows"):
        loads(tmp_path)


def test_a_model_with_the_name_of_a_newer_one_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store_artifact(tmp_path, "a", 1, aliases=["same"])
    newer = store_artifact(tmp_path, "b", 2, aliases=["same"])
    assert [*loads(tmp_path)] == [newer.name]
    assert "alias 'same' of a: alias 'same' of b has the same name: `conch build` makes another one" in caplog.text


def test_a_model_for_another_machine_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store_artifact(tmp_path, "a", requires={"num_gpus": "999"})
    other = store_artifact(tmp_path, "b")
    assert [*loads(tmp_path)] == [other.name]
    assert "999" in caplog.text


def test_the_repository_of_a_store_has_its_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_artifact(tmp_path, "a", 1)
    store_artifact(tmp_path, "b", 2)
    repository = tmp_path / "repository"
    assert main(["render", f"--store={tmp_path}", f"--repository={repository}"]) == 0
    models = [parameters_in((repository / name / "config.pbtxt").read_text()) for name in ("b", "a")]
    assert [(each.position, each.load) for each in models] == [(0, Load.DEMAND), (1, Load.DEMAND)]
    assert main(["render", "x", f"--store={tmp_path}", f"--repository={repository}"]) == 1
    assert "not together with ARTIFACT, --alias or --name" in capsys.readouterr().err
