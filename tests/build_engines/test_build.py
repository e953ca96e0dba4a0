"""From a source to an artifact."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import gguf as gguf_format
import numpy as np
import pytest
from msgspec.structs import replace

from build_engines import artifact, cpu_spec
from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from build_engines.errors import ArtifactInvalid, BuildError
from model_repository.byte_table import load_byte_table
from model_repository.runtimes import PROJECTOR
from tests.build_engines.tiny_adapter import random_pairs, tensors_of, write_adapter
from tests.build_engines.tiny_checkpoint import random_weights
from tests.build_engines.tiny_embedders import write_embedder
from tests.build_engines.tiny_smolvlm import write_smolvlm
from tests.gguf_writing import write_and_close


@pytest.fixture
def gguf(checkpoint: Path, tmp_path: Path) -> Path:
    """A ready GGUF file, apart from the checkpoint that it was made of."""
    path = build(CpuSpec(model_id="source", checkpoint=checkpoint), tmp_path / "other") / "model.gguf"
    return path.rename(tmp_path / "ready.gguf")


def snapshot(folder: Path) -> dict[str, int]:
    """Return when each file was written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# --- artifacts --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_becomes_an_artifact(checkpoint: Path, artifacts: Path) -> None:
    folder = build(CpuSpec(model_id="org/tiny", checkpoint=checkpoint), artifacts)
    manifest = artifact.verify(folder)
    assert folder == artifacts / f"org--tiny-{manifest.key}"
    assert (manifest.model_id, manifest.runtime, manifest.context_window) == ("org/tiny", "llama_cpp", 1024)
    assert (manifest.eos_token_ids, manifest.options) == (frozenset({261}), {})
    assert set(manifest.source) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert set(manifest.files) == {
        "model.gguf",
        "byte_table.npz",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    }
    assert len(load_byte_table(folder / "byte_table.npz")) == 288


def test_a_projector_beside_a_gguf_file_lets_the_model_read_images(
    gguf: Path, checkpoint: Path, artifacts: Path, tmp_path: Path
) -> None:
    projector = (
        build(CpuSpec(model_id="smolvlm", checkpoint=write_smolvlm(tmp_path / "smolvlm")), artifacts) / PROJECTOR
    )
    spec = CpuSpec(model_id="mine", gguf=gguf, tokenizer=checkpoint, projector=projector)
    folder = build(spec, artifacts)
    assert (folder / PROJECTOR).read_bytes() == projector.read_bytes()
    assert artifact.verify(folder).has_images
    assert folder != build(replace(spec, projector=None), artifacts)


def test_a_gguf_file_behind_a_symbolic_link_is_in_the_artifact(gguf: Path, checkpoint: Path, artifacts: Path) -> None:
    """A download cache keeps relative links to its blobs, which pointed nowhere from inside the artifact."""
    link = gguf.parent / "cache" / "model.gguf"
    link.parent.mkdir()
    link.symlink_to(os.path.relpath(gguf, link.parent))
    folder = build(CpuSpec(model_id="mine", gguf=link, tokenizer=checkpoint), artifacts)
    assert "model.gguf" in artifact.verify(folder).files
    assert not (folder / "model.gguf").is_symlink()


def test_a_copied_gguf_file_is_apart_from_the_users_file(gguf: Path, checkpoint: Path, artifacts: Path) -> None:
    """The artifact was a hard link: a user who overwrote the file changed a running model."""
    folder = build(CpuSpec(model_id="mine", gguf=gguf, tokenizer=checkpoint), artifacts)
    gguf.write_bytes(b"other")
    assert artifact.verify(folder).linked == {}


def test_a_file_system_that_shares_blocks_copies_files_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ioctl(target: BinaryIO, request: int, source: int) -> None:
        assert request == fcntl.FICLONE
        target.write(os.read(source, 100))

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    monkeypatch.setattr(artifact, "MAX_COPIED_BYTES", 0)
    (tmp_path / "source").write_bytes(b"weights")
    artifact.copy_or_link(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"weights"
    assert (tmp_path / "target").stat().st_nlink == 1


@pytest.fixture
def linked(gguf: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CpuSpec:
    """A GGUF file and a projector that are too large to be copied."""
    smolvlm = build(CpuSpec(model_id="smolvlm", checkpoint=write_smolvlm(tmp_path / "smolvlm")), tmp_path / "other")
    monkeypatch.setattr(artifact, "MAX_COPIED_BYTES", 0)
    return CpuSpec(model_id="mine", gguf=gguf, tokenizer=checkpoint, projector=smolvlm / PROJECTOR)


@pytest.mark.parametrize("name", ["model.gguf", PROJECTOR])
def test_a_large_file_is_linked_and_a_change_of_it_is_named(name: str, linked: CpuSpec, artifacts: Path) -> None:
    folder = build(linked, artifacts)
    manifest = artifact.verify(folder)
    assert set(manifest.linked) == {"model.gguf", PROJECTOR}
    source = Path(manifest.linked[name].source)
    assert source in (linked.gguf, linked.projector)
    with source.open("ab") as file:
        file.write(b"!")
    with pytest.raises(ArtifactInvalid, match=rf"^{source}: changed since the model was built \(.* build the model"):
        artifact.verify(folder)
    assert artifact.why_incomplete(folder)


def test_an_artifact_of_a_changed_file_is_built_again_when_the_file_is_as_before(
    linked: CpuSpec, artifacts: Path
) -> None:
    """The name of an artifact comes of its sources: a build after a repair of the file found the damaged artifact."""
    folder = build(linked, artifacts)
    assert linked.gguf is not None
    content = linked.gguf.read_bytes()
    linked.gguf.write_bytes(b"other")
    linked.gguf.unlink()
    linked.gguf.write_bytes(content)
    assert build(linked, artifacts) == folder
    artifact.verify(folder)


def test_a_copy_of_an_artifact_does_not_depend_on_the_users_file(
    linked: CpuSpec, artifacts: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(build(linked, artifacts), tmp_path / "copy", copy_function=shutil.copyfile)
    artifact.verify(folder)


def test_generation_config_beside_the_tokenizer_names_the_end_tokens_of_a_gguf_file(
    gguf: Path, checkpoint: Path, artifacts: Path
) -> None:
    edit_json(checkpoint / "generation_config.json", eos_token_id=[5, 6])
    spec = CpuSpec(model_id="mine", gguf=gguf, tokenizer=checkpoint)
    first = build(spec, artifacts)
    assert artifact.verify(first).eos_token_ids == {5, 6}
    # It was not among the sources, so a change did not lead to another artifact.
    edit_json(checkpoint / "generation_config.json", eos_token_id=7)
    second = build(spec, artifacts)
    assert (second != first, artifact.verify(second).eos_token_ids) == (True, frozenset({7}))


def test_a_gguf_file_names_the_end_tokens_when_generation_config_does_not(
    gguf: Path, checkpoint: Path, artifacts: Path
) -> None:
    edit_json(checkpoint / "generation_config.json", eos_token_id=[])
    folder = build(CpuSpec(model_id="mine", gguf=gguf, tokenizer=checkpoint), artifacts)
    assert artifact.verify(folder).eos_token_ids == {261}


def test_generation_config_has_sampling_defaults_and_its_wrong_values_are_left_out(
    checkpoint: Path, artifacts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: dict[str, Any] = {"repetition_penalty": 3, "min_p": "0.1", "top_p": None}
    edit_json(checkpoint / "generation_config.json", do_sample=False, temperature=0.6, top_k=20, **wrong)
    manifest = artifact.verify(build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts))
    assert manifest.sampling == {"temperature": 0.6, "top_k": 20}
    assert [record.getMessage() for record in caplog.records] == [
        'warning: generation_config.json: min_p="0.1": must be a number, at least 0, at most 1: left out',
        "warning: generation_config.json: repetition_penalty=3: must be a number, above 0, at most 2: left out",
    ]


def test_a_sliding_window_that_cuts_the_context_window_is_named(
    checkpoint: Path, artifacts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit_json(checkpoint / "config.json", architectures=["MistralForCausalLM"], sliding_window=200)
    manifest = artifact.verify(build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts))
    assert manifest.context_window == 200
    rule = "the context window has no more tokens, in place of 1024"
    assert [record.getMessage() for record in caplog.records] == [f"warning: config.json: sliding_window=200: {rule}"]
    with pytest.raises(BuildError, match="context window 300: this model has 2 to 200 tokens"):
        build(CpuSpec(model_id="tiny", checkpoint=checkpoint, context_window=300), artifacts)


def test_sampling_defaults_of_the_catalog_are_for_a_source_without_values(checkpoint: Path, artifacts: Path) -> None:
    spec = CpuSpec(model_id="tiny", checkpoint=checkpoint, named_facts={"sampling": {"temperature": 0.6, "top_k": 20}})
    assert artifact.verify(build(spec, artifacts)).sampling == {"temperature": 0.6, "top_k": 20}
    edit_json(checkpoint / "generation_config.json", top_p=0.9)
    assert artifact.verify(build(spec, artifacts)).sampling == {"top_p": 0.9}


@pytest.mark.parametrize(
    ("config", "of_catalog", "expected"),
    [
        ({"matryoshka_dimensions": [256, 32, 64]}, 0, 32),
        ({"is_matryoshka": True}, 0, 1),
        ({"is_matryoshka": False}, 16, 16),
        ({"matryoshka_dimensions": [256, 32]}, 16, 32),
        ({}, 0, 0),
    ],
)
def test_the_shortest_vector_is_that_of_the_source_or_of_the_catalog(
    checkpoint: Path, artifacts: Path, config: dict[str, Any], of_catalog: int, expected: int
) -> None:
    edit_json(checkpoint / "config.json", **config)
    spec = CpuSpec(model_id="tiny", checkpoint=checkpoint, named_facts={"min_dimensions": of_catalog})
    assert artifact.verify(build(spec, artifacts)).min_dimensions == expected


@pytest.mark.parametrize("value", [256, [0], ["32"], [32.0]])
def test_lengths_of_vectors_in_another_form_are_refused(checkpoint: Path, artifacts: Path, value: Any) -> None:
    edit_json(checkpoint / "config.json", matryoshka_dimensions=value)
    with pytest.raises(BuildError, match=r"^config\.json: matryoshka_dimensions="):
        build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts)


def test_a_gguf_file_has_sampling_defaults_and_generation_config_goes_before_them(
    checkpoint: Path, artifacts: Path, tmp_path: Path
) -> None:
    writer = gguf_format.GGUFWriter(tmp_path / "sampled.gguf", "llama")
    writer.add_context_length(64)
    writer.add_sampling_temp(0.6)
    writer.add_sampling_top_k(20)
    writer.add_sampling_top_p(0.95)
    writer.add_sampling_min_p(0.05)
    writer.add_sampling_penalty_repeat(1.1)
    writer.add_tensor("token_embd.weight", np.zeros((288, 8), dtype=np.float32))
    write_and_close(writer)
    edit_json(checkpoint / "generation_config.json", top_k=5)
    spec = CpuSpec(model_id="mine", gguf=tmp_path / "sampled.gguf", tokenizer=checkpoint)
    assert artifact.verify(build(spec, artifacts)).sampling == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 5,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
    }


def test_a_sampling_default_that_the_runtime_lacks_is_left_out(checkpoint: Path, artifacts: Path) -> None:
    """Each request would be refused."""
    edit_json(checkpoint / "generation_config.json", temperature=0.6, repetition_penalty=1.1)
    folder = build(CpuSpec(model_id="fast", checkpoint=checkpoint, runtime="synthetic"), artifacts)
    assert artifact.verify(folder).sampling == {"temperature": 0.6}


def test_the_synthetic_runtime_needs_no_weights(checkpoint: Path, artifacts: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    folder = build(CpuSpec(model_id="fast", checkpoint=checkpoint, runtime="synthetic"), artifacts)
    assert "model.gguf" not in artifact.verify(folder).files


def test_config_names_the_end_token_when_generation_config_does_not(checkpoint: Path, artifacts: Path) -> None:
    (checkpoint / "generation_config.json").unlink()
    edit_json(checkpoint / "config.json", eos_token_id=9)
    folder = build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts)
    assert artifact.verify(folder).eos_token_ids == {9}


# --- reuse ------------------------------------------------------------------------------------------------------------


def test_a_second_build_writes_nothing(checkpoint: Path, artifacts: Path) -> None:
    spec = CpuSpec(model_id="tiny", checkpoint=checkpoint)
    folder = build(spec, artifacts)
    before = snapshot(folder)
    assert build(spec, artifacts) == folder
    assert snapshot(folder) == before


def test_an_incomplete_artifact_is_built_again_with_the_reason(
    checkpoint: Path, artifacts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = CpuSpec(model_id="tiny", checkpoint=checkpoint)
    folder = build(spec, artifacts)
    (folder / "byte_table.npz").unlink()
    assert build(spec, artifacts) == folder
    assert caplog.messages == ["tiny is built again: byte_table.npz is missing"]
    artifact.verify(folder)


def test_a_model_with_an_artifact_of_another_format_is_built_again_with_the_reason(
    checkpoint: Path, artifacts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The format is part of the key: the build was silent, and took an hour."""
    spec, older = CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts / f"tiny-{'0' * artifact.KEY_LENGTH}"
    build(spec, artifacts).rename(older)
    edit_json(older / artifact.MANIFEST, format=artifact.FORMAT - 1)
    folder = build(spec, artifacts)
    rule = f"format {artifact.FORMAT - 1}, expected {artifact.FORMAT}: build it again"
    assert caplog.messages == [f"tiny is built again: {older / artifact.MANIFEST}: {rule}"]
    assert build(spec, artifacts) == folder
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"context_window": 100},
        {"runtime": "synthetic"},
        {"runtime": "synthetic", "options": {"itl_ms": "5"}},
        {"model_id": "other"},
    ],
)
def test_another_spec_is_another_artifact(changes: dict[str, Any], checkpoint: Path, artifacts: Path) -> None:
    spec: dict[str, Any] = {"model_id": "tiny", "checkpoint": checkpoint}
    first, second = build(CpuSpec(**spec), artifacts), build(CpuSpec(**(spec | changes)), artifacts)
    assert artifact.verify(first).key != artifact.verify(second).key
    assert first != second


def test_another_source_is_another_artifact(checkpoint: Path, artifacts: Path) -> None:
    spec = CpuSpec(model_id="tiny", checkpoint=checkpoint, runtime="synthetic")
    folders = {build(spec, artifacts)}
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (checkpoint / name).write_text((checkpoint / name).read_text() + "\n")
        folders.add(build(spec, artifacts))
    assert len(folders) == 5


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(number: int, checkpoint: Path, artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cpu_spec, "write_text_files", write)
    with pytest.raises(BuildError, match=r"artifacts: the disk is full: free some, or name another --home"):
        build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts)
    assert [path for path in artifacts.iterdir() if path.is_dir()] == []


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"checkpoint": None, "gguf": Path("x.gguf"), "tokenizer": Path("none")},
            "--tokenizer none: no such folder",
        ),
        ({"tokenizer": Path("other")}, "--tokenizer goes with --gguf"),
        ({"adapters": {"tiny": Path("x")}}, "adapter tiny of tiny: model tiny has the same name"),
        ({"adapters": {"x": Path("x")}, "runtime": "synthetic"}, "--adapter: the runtime synthetic has no adapters"),
        ({"runtime": "synthetic", "projector": Path("x.gguf")}, "--mmproj: the runtime synthetic reads no images"),
    ],
)
def test_a_contradictory_spec_is_refused(changes: dict[str, Any], message: str, checkpoint: Path) -> None:
    spec: dict[str, Any] = {"model_id": "tiny", "checkpoint": checkpoint}
    with pytest.raises(BuildError, match=message):
        CpuSpec(**(spec | changes))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, r"config\.json: no such file"),
        ("config.json", "{", r"config\.json: not JSON"),
        ("config.json", "[]", r"config\.json: expected a JSON object"),
        ("generation_config.json", '{"eos_token_id": [2, -1]}', r"eos_token_id=\[2, -1\]: expected a token id"),
        ("config.json", "{}", r"config\.json: max_position_embeddings is missing"),
        ("generation_config.json", None, "neither generation_config.json nor config.json names an eos_token_id"),
        ("tokenizer.json", None, r"/checkpoint: there is no tokenizer\.json and no GGUF file in it$"),
        ("tokenizer.json", "{}", r"checkpoint: its tokenizer does not load: .*Model missing"),
        (
            "config.json",
            '{"max_position_embeddings": 0, "vocab_size": 9}',
            r"config\.json: max_position_embeddings=0: expected a whole number from 2",
        ),
        ("config.json", "[" * 100_000, r"config\.json: not JSON"),
        # Values beyond all models ended in a MemoryError after half a minute, a struct.error or a TypeError.
        ("config.json", {"vocab_size": 10**12}, "vocab_size=10+: expected a whole number from 2 to 16777216"),
        ("config.json", {"max_position_embeddings": 10**15}, "embeddings=10+: expected a whole number from 2 to 2147"),
        ("config.json", {"architectures": "Llama"}, "architectures='Llama': expected a list"),
        ("config.json", {"text_config": 7}, "text_config=7: expected an object"),
        ("config.json", {"rope_scaling": 7}, "rope_scaling=7: expected an object"),
        ("tokenizer_config.json", '{"bos_token": {}}', r"tokenizer_config\.json: bos_token=\{\}: expected a text"),
        (
            "tokenizer_config.json",
            '{"eos_token": ["a"]}',
            r"tokenizer_config\.json: eos_token=\['a'\]: expected a text",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused(
    name: str, content: str | dict[str, Any] | None, message: str, checkpoint: Path, artifacts: Path
) -> None:
    if content is None:
        (checkpoint / name).unlink()
    elif isinstance(content, dict):
        edit_json(checkpoint / name, **content)
    else:
        (checkpoint / name).write_text(content)
    with pytest.raises(BuildError, match=message):
        build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts)


@pytest.mark.parametrize("context_window", [1, 1025])
def test_a_context_window_that_the_model_does_not_have_is_refused(
    context_window: int, checkpoint: Path, artifacts: Path
) -> None:
    with pytest.raises(BuildError, match=f"context window {context_window}: this model has 2 to 1024 tokens"):
        build(CpuSpec(model_id="tiny", checkpoint=checkpoint, context_window=context_window), artifacts)


BPE = {"type": "BPE", "vocab": {"a": 0}, "merges": []}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": None},
        {"model": BPE | {"vocab": {"a": "b"}}},
        {"model": BPE | {"merges": [1, 2]}},
        {"model": BPE | {"vocab": {"a": 2**32 - 1}}},
        {"added_tokens": None},
        {"pre_tokenizer": 7},
        {"post_processor": {"type": "TemplateProcessing", "single": []}},
    ],
    ids=str,
)
def test_a_malformed_tokenizer_is_one_line(changes: dict[str, Any], checkpoint: Path, artifacts: Path) -> None:
    """The conversion read it before the tokenizer's library had checked it: TypeError, KeyError, MemoryError."""
    edit_json(checkpoint / "tokenizer.json", **changes)
    with pytest.raises(BuildError, match=r"its tokenizer does not load: |has token 4294967295"):
        build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts)


@pytest.mark.parametrize("name", ["option", "adapter"])
def test_a_model_that_embeds_takes_neither_options_nor_adapters(name: str, tmp_path: Path, artifacts: Path) -> None:
    given: dict[str, Any] = {"options": {"contexts": "2"}} if name == "option" else {"adapters": {"a": tmp_path}}
    spec = CpuSpec(model_id="bert", checkpoint=write_embedder(tmp_path / "bert", "bert"), **given)
    with pytest.raises(BuildError, match=f"^--{name} (contexts|a): bert embeds, and takes none"):
        build(spec, artifacts)


def test_a_tokenizer_of_another_model_is_refused(gguf: Path, checkpoint: Path, artifacts: Path) -> None:
    description = json.loads((checkpoint / "tokenizer.json").read_text())
    description["model"]["vocab"]["more"] = 288
    edit_json(checkpoint / "tokenizer.json", **description)
    with pytest.raises(BuildError, match=r"tokenizer\.json: has token 288; the model has tokens 0 to 287"):
        build(CpuSpec(model_id="mine", gguf=gguf, tokenizer=checkpoint), artifacts)


def test_a_folder_of_an_adapter_is_no_model(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora", tensors_of(random_pairs(random_weights(), ("q_proj",))))
    with pytest.raises(BuildError, match=r"lora: a LoRA adapter: give its model, and this folder with --adapter"):
        CpuSpec(model_id="lora", checkpoint=adapter)
