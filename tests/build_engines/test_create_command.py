"""`create`: presets in the store, and the commands that list, show, remove and serve them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from build_engines.__main__ import main
from build_engines.errors import BuildError
from build_engines.presets import models_named, read_presets
from model_repository.model_parameters import Preset
from tests.build_engines.serving_home import serving
from tests.build_engines.test_main import read_ensemble
from tests.build_engines.tiny_embedders import write_embedder

MODELFILE = """FROM tiny
SYSTEM Be brief.
PARAMETER temperature 0.5
PARAMETER stop END
"""
BRIEF = Preset(system="Be brief.", defaults={"temperature": 0.5, "stop": ("END",)})


@pytest.fixture
def home(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the model `tiny`, which has an alias, and a Modelfile in the current folder."""
    home = tmp_path / "home"
    assert main(["pull", "tiny", f"--checkpoint={checkpoint}", "--alias=other", f"--home={home}"]) == 0
    monkeypatch.chdir(tmp_path)
    Path("Modelfile").write_text(MODELFILE)
    return home


def create(home: Path, name: str, text: str = MODELFILE) -> int:
    (home / "written").write_text(text)
    return main(["create", name, "-f", str(home / "written"), f"--home={home}"])


def test_a_preset_is_stored_by_its_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["create", "brief", f"--home={home}"]) == 0
    assert capsys.readouterr().out == "preset      brief of tiny\n"
    assert read_presets(home) == {"tiny": {"brief": BRIEF}}


def test_a_preset_of_the_name_is_replaced(home: Path, checkpoint: Path) -> None:
    assert main(["pull", "second", f"--checkpoint={checkpoint}", f"--home={home}"]) == 0
    assert create(home, "brief") == create(home, "brief", "FROM second") == 0
    assert read_presets(home) == {"second": {"brief": Preset()}}


def test_a_preset_of_a_preset_has_its_values_where_it_names_none(home: Path) -> None:
    assert create(home, "brief") == create(home, "warm", "FROM brief\nPARAMETER temperature 1") == 0
    assert create(home, "formal", "FROM brief\nSYSTEM Be formal.") == 0
    assert read_presets(home)["tiny"] == {
        "brief": BRIEF,
        "warm": Preset(system="Be brief.", defaults={"temperature": 1, "stop": ("END",)}),
        "formal": Preset(system="Be formal.", defaults=BRIEF.defaults),
    }


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("brief", "FROM nope", "FROM nope: not in the store: `conch pull nope` builds it"),
        ("brief", "FROM vectors", "FROM vectors: its task is embed: a preset needs a model that generates"),
        ("brief", "FROM tiny\nADAPTER x", "written: line 2: ADAPTER x: `conch build MODEL --adapter NAME=DIR` adds"),
        ("tiny", MODELFILE, "preset tiny: model tiny has the same name"),
        ("other", MODELFILE, "preset other: alias 'other' of tiny has the same name"),
        ("demo", MODELFILE, "preset demo: model demo has the same name"),
        ("qwen3:8b", MODELFILE, "preset qwen3:8b: model Qwen/Qwen3-8B of the catalog has the same name"),
        (" a", MODELFILE, "preset ' a': printable characters, no space at either end"),
    ],
)
def test_what_cannot_be_a_preset_is_refused(
    name: str, text: str, error: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embedder = write_embedder(home / "embedder", "bert")
    assert main(["pull", "vectors", f"--checkpoint={embedder}", f"--home={home}"]) == 0
    assert create(home, name, text) == 1
    assert error in capsys.readouterr().err
    assert read_presets(home) == {}


def test_a_missing_or_damaged_file_is_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "brief", "-f", "none", f"--home={home}"]) == 1
    assert "No such file or directory: 'none'" in capsys.readouterr().err
    Path("Modelfile").write_bytes(b"\xff")
    assert main(["create", "brief", f"--home={home}"]) == 1
    assert capsys.readouterr().err.startswith("error: Modelfile: 'utf-8' codec can't decode")
    for fields, fault in (('"system": 5', "Expected `str`"), ('"defaults": {"seed": -1}', "seed=-1: must be a whole")):
        (home / "presets.json").write_text(f'{{"tiny": {{"brief": {{{fields}}}}}}}')
        with pytest.raises(BuildError, match=rf"presets\.json: not a file of presets \({fault}"):
            read_presets(home)


def test_a_preset_is_listed_shown_and_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert create(home, "brief") == 0
    capsys.readouterr()
    with serving(home, "tiny", "brief") as url:
        assert main(["list", f"--home={home}"]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    values = ["temperature=0.5", 'stop=["END"]']
    assert row.split() == ["brief", "preset", "of", "tiny", "generate", *values, url]
    assert main(["list", "--json", f"--home={home}"]) == 0
    shown = json.loads(capsys.readouterr().out)["presets"]
    assert shown == {"tiny": {"brief": {"system": "Be brief.", "defaults": {"temperature": 0.5, "stop": ["END"]}}}}
    assert main(["show", "brief", f"--home={home}"]) == 0
    assert {line[:15].strip(): line[15:] for line in capsys.readouterr().out.splitlines()} == {
        "preset": "brief",
        "model": "tiny",
        "system prompt": "Be brief.",
        "defaults": 'temperature=0.5, stop=["END"]',
    }
    assert main(["rm", "brief", "brief", f"--home={home}"]) == 0
    assert capsys.readouterr().out == "removed     preset brief of tiny\n"
    assert read_presets(home) == {} and [*home.glob("artifacts/tiny-*/")]


def test_the_presets_of_a_model_outlive_its_artifacts(home: Path) -> None:
    assert create(home, "brief") == 0
    assert main(["rm", "tiny", f"--home={home}"]) == 0
    assert read_presets(home) == {"tiny": {"brief": BRIEF}}


@pytest.mark.parametrize("words", [["build", "tiny"], ["build", "brief"], ["build", "brief", "tiny"], ["render"]])
def test_a_served_model_has_its_presets(words: list[str], home: Path) -> None:
    assert create(home, "brief") == create(home, "warm", "FROM brief") == 0
    place = f"--store={home}" if words == ["render"] else f"--home={home}"
    assert main([*words, place, "--repository=repository"]) == 0
    assert read_ensemble(Path("repository"), "tiny").presets == {"brief": BRIEF, "warm": BRIEF}


def test_a_preset_of_a_file_of_models_goes_before_one_of_the_store(home: Path, checkpoint: Path) -> None:
    assert create(home, "brief") == create(home, "warm") == 0
    presets = "{brief: {from: tiny, system: Be formal.}}"
    Path("conch.yaml").write_text(f"models: {{tiny: {{checkpoint: {checkpoint}}}}}\npresets: {presets}")
    assert main(["build", "conch.yaml", f"--home={home}", "--repository=repository"]) == 0
    found = read_ensemble(Path("repository"), "tiny").presets
    assert found == {"brief": Preset(system="Be formal."), "warm": BRIEF}
    assert read_presets(home)["tiny"]["brief"] == BRIEF


def test_an_alias_that_has_become_the_name_of_a_preset_is_refused(
    home: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert create(home, "brief") == 0
    words = ["build", "tiny", f"--checkpoint={checkpoint}", "--alias=brief", f"--home={home}"]
    assert main(words) == 1
    assert "preset brief of tiny " in capsys.readouterr().err


def test_names_of_presets_are_those_of_their_models_once() -> None:
    presets = {"demo": {"brief": Preset(), "warm": Preset()}, "tiny": {"short": Preset()}}
    assert models_named(presets, ["brief", "warm", "short"]) == ["demo", "tiny"]
    assert models_named(presets, ["brief", "other", "demo"]) == ["other", "demo"]
    assert models_named(presets, ["demo", "demo"]) == ["demo", "demo"]
