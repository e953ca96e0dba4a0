"""The folder of adapters, the checks of an adapter, and the notes of loaded ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model_repository.ascii_path import ascii_path
from model_repository.engine.adapters.folder import Adapter
from model_repository.errors import EngineFailed, InvalidRequest
from model_repository.model_parameters import ModelParameters
from tests.fakes import served_model
from tests.model_repository.engine.adapter_folders import WEIGHTS, root_of, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A root with one adapter, and one beside it."""
    write_folder(tmp_path / "outside" / "secret")
    write_folder(tmp_path / "root" / "teams" / "polite")
    return tmp_path / "root"


def refusal(folder: Path, source: str, name: str = "x", **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        root_of(folder, **fields).find(name, source)
    return refused.value


@pytest.mark.parametrize("source", ["teams/polite", "teams//polite/", "./teams/../teams/polite"])
def test_an_adapter_is_found_below_the_root(folder: Path, source: str) -> None:
    adapter = root_of(folder).find("org/polite", source)
    assert (adapter.path, adapter.source) == (folder / "teams" / "polite" / "adapter.gguf", "teams/polite")
    assert (adapter.num_bytes, adapter.rank) == (len(WEIGHTS), 8)


def test_the_root_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert root_of(tmp_path / "link").find("x", "teams/polite").source == "teams/polite"


def test_paths_have_no_letter_of_the_roots_own_that_tritons_python_cannot_open(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Triton's folder
    given = served_model(adapter_root=root_of(folder.rename(tmp_path / "jürgen"))).parameters.to_config()
    root = ModelParameters.from_config(given, ascii_path).adapter_root
    assert root is not None
    path = root.find("x", "teams/polite").path
    assert path.is_file() and str(path).isascii()


@pytest.mark.parametrize(
    "source",
    ["", ".", "../outside/secret", "../outside/nothing", "/etc", "~", "link", "in/link", "loop", ".loaded", "a\0b"],
)
def test_nothing_outside_the_root_is_loaded_or_named(folder: Path, source: str) -> None:
    (folder / "link").symlink_to(folder.parent / "outside" / "secret")
    (folder / "loop").symlink_to("loop")
    (folder / ".loaded").mkdir()  # of notes
    (folder / "in").mkdir()
    (folder / "in" / "link").symlink_to("../../outside")
    refused = refusal(folder, source)
    assert refused.field == "source"
    assert str(folder.parent) not in refused.text
    if source != "~":  # a name as any other
        assert refused.text == f"{source!r}: must be a folder below the root of adapters"


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"runtime": "tensorrt_llm"}, "built for the runtime tensorrt_llm, and the model's is llama_cpp"),
        ({"base": "other"}, "built for other weights than the model's"),
        ({"rank": 65}, "its rank is 65: at most 64"),
        ({"files": {}}, "adapter.json names no adapter.gguf"),
        ({"files": {"adapter.gguf": "0" * 64}}, "'adapter.gguf' differs from its digest"),
        ({"files": {"more.bin": "0" * 64}}, "'more.bin' is missing"),
        ({"files": {"../polite/adapter.gguf": "0" * 64}}, "or is not in this folder"),
        ({"files": {"/etc/passwd": "0" * 64}}, "or is not in this folder"),
        ({"files": {"linked": "0" * 64}}, "'linked' is missing, or is not in this folder"),
    ],
)
def test_an_adapter_that_breaks_its_manifest_or_does_not_fit_is_refused(
    folder: Path, fields: dict[str, Any], rule: str
) -> None:
    write_folder(folder / "bad", **fields)
    (folder / "bad" / "linked").symlink_to("/etc/passwd")
    assert rule in refusal(folder, "bad").text


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"format": 2}', '{"format": 1, "runtime": "llama_cpp"}', b"\xff".decode("latin-1")],
)
def test_a_malformed_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "teams" / "polite" / "adapter.json").write_text(text, encoding="latin-1")
    assert "is not what `conch adapter` writes" in refusal(folder, "teams/polite").text


@pytest.mark.parametrize(
    ("name", "value"),
    [("rank", 0), ("rank", True), ("rank", "8"), ("modules", [1]), ("files", {"a": 1}), ("base", None)],
)
def test_a_manifest_with_a_wrong_value_is_refused(folder: Path, name: str, value: Any) -> None:
    path = folder / "teams" / "polite" / "adapter.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    assert "is not what" in refusal(folder, "teams/polite").text


@pytest.mark.parametrize("name", ["", "a--b", "a b", "../x", "x" * 3 + "/", "org/demo"])
def test_a_name_that_no_model_could_have_or_that_is_the_models_own_is_refused(folder: Path, name: str) -> None:
    assert refusal(folder, "teams/polite", name).field == "name"


# --- notes -----------------------------------------------------------------------------------------------------------


def test_notes_outlive_the_engine_and_models_have_their_own(folder: Path) -> None:
    root = root_of(folder)
    adapter = root.find("org/polite", "teams/polite")
    root.note("org/polite", adapter)
    root.note("brief", adapter)
    root.note("brief", adapter)
    assert list(root_of(folder).noted()) == [("brief", "teams/polite"), ("org/polite", "teams/polite")]
    assert list(root_of(folder, ensemble="other").noted()) == []
    for _ in range(2):
        root.forget("brief")
    assert list(root_of(folder).noted()) == [("org/polite", "teams/polite")]


def test_replicas_note_an_adapter_at_the_same_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them found the other's file gone."""
    replace, root, others = Path.replace, root_of(folder), [root_of(folder)]
    adapter = root.find("polite", "teams/polite")

    def noted_by_another(path: Path, target: Path) -> Path:
        while others:
            others.pop().note("polite", adapter)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", noted_by_another)
    root.note("polite", adapter)
    assert list(root.noted()) == [("polite", "teams/polite")]


def test_a_copy_outlives_its_original(folder: Path) -> None:
    root = root_of(folder, runtime="tensorrt_llm")
    write_folder(folder / "whole", runtime="tensorrt_llm")
    found = root.find("x", "whole")
    copies = [root.copy(found) for _ in range(2)]
    (folder / "whole" / "adapter.gguf").write_bytes(b"others")
    assert copies[0] == copies[1] == replace(found, path=copies[0].path)
    assert (copies[0].path / "adapter.gguf").read_bytes() == WEIGHTS


def test_a_copy_of_files_that_have_changed_is_refused(folder: Path) -> None:
    root = root_of(folder, runtime="tensorrt_llm")
    write_folder(folder / "whole", runtime="tensorrt_llm")
    found = root.find("x", "whole")
    (folder / "whole" / "adapter.gguf").write_bytes(b"others")
    with pytest.raises(InvalidRequest, match="differs from its digest"):
        root.copy(found)
    shutil.rmtree(folder / "whole")
    write_folder(folder / "whole", b"others", runtime="tensorrt_llm")
    with pytest.raises(InvalidRequest, match="its files change while it is loaded"):
        root.copy(found)
    shutil.rmtree(folder / "whole")
    write_folder(folder / "whole", runtime="tensorrt_llm")
    assert list(root.copy(found).path.parent.iterdir()) == [root.copy(found).path]


def test_a_malformed_note_is_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = root_of(folder)
    root.note("polite", root.find("polite", "teams/polite"))
    notes = folder / ".loaded" / "org--demo"
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.json", '{"name": "c"}')):
        (notes / name).write_text(text)
    assert list(root.noted()) == [("polite", "teams/polite")]
    assert caplog.text.count("is no note of an adapter") == 3


def test_an_unwritable_note_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".loaded").write_text("a file")
    adapter = Adapter(path=tmp_path, key="", num_bytes=0, source="x")
    with pytest.raises(EngineFailed, match="not writable"):
        root_of(tmp_path).note("x", adapter)
    with pytest.raises(EngineFailed, match="not writable"):
        root_of(tmp_path).copy(adapter)
    with pytest.raises(EngineFailed, match="not writable"):
        root_of(tmp_path).forget("x")
