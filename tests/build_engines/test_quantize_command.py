"""`quantize`: a GGUF file into a smaller one."""

from __future__ import annotations

import functools
import shutil
from collections import namedtuple
from pathlib import Path

import gguf
import pytest

from build_engines.__main__ import main
from build_engines.checkpoint import Checkpoint
from build_engines.commands import quantize as command
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.gguf_header import read_gguf_kind
from build_engines.llama_cpp.quantize import FILE_TYPES, least_bytes
from build_engines.model_source import DEMO


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The demo model in f16."""
    path = tmp_path / "demo-F16.gguf"
    write_gguf(Checkpoint.load(DEMO / "checkpoint"), path, "f16")
    return path


def refusal(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(["quantize", *map(str, words)]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("word", ["Q4_K_M", "q8_0"])
def test_the_new_file_is_beside_the_source_and_the_sizes_are_shown(
    word: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(source), word]) == 0
    output = source.with_name(f"demo-{word.lower()}.gguf")
    assert read_gguf_kind(output)[1] == word.lower()
    before, after = capsys.readouterr().out.splitlines()
    assert before == f"source      {source}: 6.0 MB, llama f16"
    share = 100 * output.stat().st_size / source.stat().st_size
    assert after == f"quantized   {output}: {output.stat().st_size / 1e6:.1f} MB, {share:.0f} % of the source"
    assert {path.name for path in source.parent.iterdir()} == {source.name, output.name}


def test_a_model_in_several_files_becomes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", functools.partial(gguf.GGUFWriter, split_max_tensors=8))
        write_gguf(Checkpoint.load(DEMO / "checkpoint"), tmp_path / "demo-f16.gguf", "f16")
    first = min(tmp_path.iterdir())
    assert main(["quantize", str(first), "q4_0"]) == 0
    assert read_gguf_kind(tmp_path / "demo-q4_0.gguf")[1:] == ("q4_0", read_gguf_kind(first)[2])


@pytest.mark.parametrize("precision", FILE_TYPES)
def test_no_precision_needs_less_than_is_checked_for(precision: str, source: Path) -> None:
    output = source.with_name("small.gguf")
    assert main(["quantize", str(source), precision, "--output", str(output)]) == 0
    num_weights = read_gguf_kind(source)[2]
    assert 0.4 * output.stat().st_size < least_bytes(num_weights, precision) < output.stat().st_size


def test_a_source_that_is_quantized_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(source), "q8_0"]) == 0
    small = source.with_name("demo-q8_0.gguf")
    rule = "llama.cpp quantizes files in f32, f16 or bf16, since a second rounding adds its error to the first"
    assert refusal(capsys, small, "q4_0") == f"error: {small}: has tensors in q8_0: {rule}\n"


def test_another_file_than_a_gguf_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    assert "notes.txt: not a GGUF file: begins with b'note'" in refusal(capsys, tmp_path / "notes.txt", "q4_0")
    assert "none.gguf: no such file" in refusal(capsys, tmp_path / "none.gguf", "q4_0")


def test_an_unknown_type_is_refused_with_the_known_ones(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["quantize", str(source), "q4_k"])
    assert raised.value.code == 2
    assert "TYPE: q4_k: expected one of q8_0, q2_k, " in capsys.readouterr().err


def test_a_file_that_is_there_stays(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = "is there already: name another file with --output, or remove this one"
    assert refusal(capsys, source, "q4_0", "--output", source) == f"error: {source}: {rule}\n"


def test_a_full_disk_is_reported_before_the_work(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100_000, 90_000, 10_000))
    assert "demo-q4_0.gguf: needs 1,6" in refusal(capsys, source, "q4_0")


def test_an_interrupted_command_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: Path, target: Path, precision: str) -> None:
        target.write_bytes(b"GGUF")
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "quantize", interrupted)
    assert main(["quantize", str(source), "q4_0"]) == 130
    assert list(source.parent.iterdir()) == [source]
