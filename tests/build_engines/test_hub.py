"""Models of the hub, from a stand-in hub with its faults."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from build_engines.checkpoint import Checkpoint
from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.hub import HubReference, checkpoint_folder
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.model_source import DEMO
from tests.build_engines.stand_in_hub import COMMIT, TOKEN, Repository, stand_in_hub

pytestmark = pytest.mark.usefixtures("servers")


@pytest.mark.parametrize(
    ("text", "repository", "revision", "variant"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct@main", "meta-llama/Llama-3.1-8B-Instruct", "main", None),
        (f"a/b@{COMMIT}", "a/b", COMMIT, None),
        ("a/b@refs/pr/1", "a/b", "refs/pr/1", None),
        ("a/b", "a/b", "main", None),
        ("a/b:Q4_K_M", "a/b", "main", "Q4_K_M"),
        ("a/b@v1:sub/b-f16.gguf", "a/b", "v1", "sub/b-f16.gguf"),
    ],
)
def test_a_reference_names_a_repository_a_revision_and_a_variant(
    text: str, repository: str, revision: str, variant: str | None
) -> None:
    assert HubReference.find(text) == HubReference(repository, revision, variant)


@pytest.mark.parametrize("text", ["", "folder", "a/b/c", "a/b@", "/abs/path", "a/b@x@y", "a/b:Q4_K_M"])
def test_a_malformed_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="no such folder, nor of the form OWNER/NAME@REVISION"):
        HubReference.parse(text)


class Builder:
    """Runs `build` with a hub and a cache of its own."""

    def __init__(self, state_dir: Path, endpoint: str) -> None:
        self.state_dir = state_dir
        self.environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(state_dir / "hub"), "HF_TOKEN": ""}

    def build(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        command = [sys.executable, "-m", "build_engines", "build", *words, "--state-dir", str(self.state_dir)]
        return subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, check=False, timeout=300
        )

    def error(self, *words: str, **environment: str) -> str:
        """Return the one line of a build that fails."""
        done = self.build(*words, **environment)
        assert done.returncode == 1
        *_, line = done.stderr.splitlines()
        assert line.startswith("error: ") and "Traceback" not in done.stderr
        return line

    def manifest(self, *words: str, **environment: str) -> dict[str, object]:
        """Return the manifest of the artifact of a build that succeeds."""
        done = self.build(*words, **environment)
        assert done.returncode == 0, done.stderr
        folder = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("artifact"))
        manifest: dict[str, object] = json.loads((Path(folder) / "manifest.json").read_text())
        return manifest


@pytest.fixture(scope="module")
def gguf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as a repository of GGUF files."""
    folder = tmp_path_factory.mktemp("gguf")
    for name, precision in (("demo-Q8_0.gguf", "q8_0"), ("demo-Q4_K_M.gguf", "f16")):
        write_gguf(Checkpoint.load(DEMO / "checkpoint"), folder / name, precision)
    shutil.copyfile(DEMO / "mmproj.gguf", folder / "mmproj-demo-f16.gguf")
    return folder


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_checkpoint_is_built_and_again_without_a_network(tmp_path: Path) -> None:
    with stand_in_hub({"org/demo": Repository(DEMO / "checkpoint")}) as endpoint:
        builder = Builder(tmp_path, endpoint)
        first = builder.build("org/demo")
        assert builder.error("org/other").startswith(
            "error: org/other@main: no such folder here, and no such repository"
        )
        no_revision = builder.error("tiny", "--checkpoint", "org/demo@v9")
        assert no_revision == "error: org/demo@v9: the repository has no such revision"
    assert first.returncode == 0, first.stderr
    assert [path.name for path in tmp_path.glob("artifacts/*/model.gguf")] == ["model.gguf"]
    for words in (["org/demo"], [f"org/demo@{COMMIT}"], ["org/demo", "--checkpoint", "org/demo@main"]):
        again = builder.build(*words)
        assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
        assert "only its downloaded files are used: config.json, " in again.stderr
    assert builder.error("org/never").startswith(f"error: org/never@main: the hub {endpoint} failed: ")


def test_a_variant_of_a_checkpoint_is_quantized(tmp_path: Path) -> None:
    with stand_in_hub({"org/demo": Repository(DEMO / "checkpoint")}) as endpoint:
        builder = Builder(tmp_path, endpoint)
        manifest = builder.manifest("org/demo:Q4_K_M")
        refused = builder.error("org/demo:Q4_K_X")
        contradicted = builder.error("org/demo:Q4_K_M", "--precision", "f16")
    assert (manifest["model_id"], manifest["precision"]) == ("org/demo:Q4_K_M", "q4_k_m")
    rule = "no GGUF file or precision Q4_K_X: it has no GGUF files; the precisions are f16, f32, q8_0, q2_k"
    assert refused.startswith(f"error: org/demo@main: {rule}")
    rule = "org/demo:Q4_K_M names a precision already: leave out --precision"
    assert contradicted == f"error: --precision f16: {rule}"


def test_gguf_files_are_found_by_precision_and_name_with_the_projector(tmp_path: Path, gguf_folder: Path) -> None:
    repository = Repository(gguf_folder)
    with stand_in_hub({"org/demo-GGUF": repository, "org/de__mo": repository}) as endpoint:
        builder = Builder(tmp_path, endpoint)
        by_precision = builder.manifest("org/demo-GGUF:q8_0")
        by_name = builder.manifest("org/demo-GGUF:demo-Q8_0.gguf")
        default = builder.manifest("org/demo-GGUF")
        named = builder.manifest("mine", "--gguf", "org/demo-GGUF:Q8_0")
        missing = builder.error("org/demo-GGUF:Q2_K")
        quantized = builder.error("org/demo-GGUF", "--precision", "q8_0")
        unserved = builder.error("org/de__mo:Q8_0")
    assert named["has_images"]
    digest = sha256(gguf_folder / "demo-Q8_0.gguf")
    for manifest in (by_precision, by_name, named):
        assert manifest["files"]["model.gguf"] == digest  # type: ignore[index]
    assert default["files"]["model.gguf"] == sha256(gguf_folder / "demo-Q4_K_M.gguf")  # type: ignore[index]
    assert (by_precision["has_images"], by_name["has_images"]) == (True, True)
    assert named["model_id"] == "mine"
    names = "demo-Q4_K_M.gguf, demo-Q8_0.gguf"
    assert missing == f"error: org/demo-GGUF@main: Q2_K: its GGUF files are {names}"
    assert (
        quantized == "error: --precision q8_0: a GGUF file keeps its precision: expected f16 or f32, for the KV cache"
    )
    assert unserved.startswith("error: model id 'org/de__mo:Q8_0': letters, digits")
    assert unserved.endswith("`conch build NAME --gguf org/de__mo@main:Q8_0` serves it as NAME")
    assert not list(tmp_path.rglob("models--org--de__mo/snapshots"))
    again = builder.manifest("org/demo-GGUF:Q8_0")  # the hub is gone
    assert again["files"] == by_precision["files"]


def test_a_repository_with_both_kinds_is_converted_unless_a_file_is_named(tmp_path: Path, gguf_folder: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(DEMO / "checkpoint", both)
    shutil.copyfile(gguf_folder / "demo-Q4_K_M.gguf", both / "demo-Q4_K_M.gguf")
    with stand_in_hub({"org/both": Repository(both)}) as endpoint:
        builder = Builder(tmp_path / "state", endpoint)
        converted, taken = builder.manifest("org/both"), builder.manifest("org/both:Q4_K_M")
    assert "model.safetensors" in converted["source"]  # type: ignore[operator]
    assert "demo-Q4_K_M.gguf" in taken["source"]  # type: ignore[operator]


def test_a_split_model_without_a_part_is_refused(tmp_path: Path, gguf_folder: Path) -> None:
    (tmp_path / "split").mkdir()
    shutil.copyfile(gguf_folder / "demo-Q8_0.gguf", tmp_path / "split" / "demo-Q8_0-00001-of-00002.gguf")
    with stand_in_hub({"org/split": Repository(tmp_path / "split")}) as endpoint:
        refused = Builder(tmp_path / "state", endpoint).error("org/split:Q8_0")
    assert refused == "error: org/split@main: demo-Q8_0-00002-of-00002.gguf: no such file in the repository"


@pytest.mark.parametrize("words", [["./typo"], ["../typo"], ["tiny", "--checkpoint", "./typo"]])
def test_a_mistyped_folder_is_one_line(words: list[str], tmp_path: Path) -> None:
    refused = Builder(tmp_path, "http://127.0.0.1:9").error(*words)
    assert refused.endswith("/typo: no such folder, and not a name of the hub")


def test_another_architecture_is_told_to_take_a_gguf_file_by_name(tmp_path: Path, gguf_folder: Path) -> None:
    (tmp_path / "gemma").mkdir()
    (tmp_path / "gemma" / "config.json").write_text('{"architectures": ["Gemma2ForCausalLM"]}')
    (tmp_path / "gemma" / "model.safetensors").write_bytes(b"never downloaded")
    gguf = Repository(gguf_folder, base="org/gemma")
    with stand_in_hub({"org/gemma": Repository(tmp_path / "gemma"), "else/gemma-GGUF": gguf}) as endpoint:
        builder = Builder(tmp_path / "state", endpoint)
        refused = builder.error("org/gemma")
    rule = "Gemma2ForCausalLM is not converted, only LlamaForCausalLM and Qwen2ForCausalLM"
    example = "take a GGUF file of the model, such as else/gemma-GGUF:Q4_K_M"
    assert refused == f"error: org/gemma@main: {rule}: {example}"
    assert not list(tmp_path.rglob("snapshots/*/model.safetensors"))


def test_an_unconverted_model_of_the_catalog_is_refused_without_a_network(tmp_path: Path) -> None:
    refused = Builder(tmp_path, "http://127.0.0.1:9").error("gemma2:9b")
    assert refused.startswith("error: google/gemma-2-9b-it@main: Gemma2ForCausalLM is not converted, only Llama")


def test_a_gated_repository_needs_a_token(tmp_path: Path) -> None:
    with stand_in_hub({"org/demo": Repository(DEMO / "checkpoint", is_gated=True)}) as endpoint:
        builder = Builder(tmp_path, endpoint)
        assert "org/demo@main: a gated repository: accept its licence on its page" in builder.error("org/demo")
        assert builder.manifest("org/demo", HF_TOKEN=TOKEN)["model_id"] == "org/demo"
        assert builder.manifest("org/demo")["model_id"] == "org/demo"  # what is downloaded needs none


def test_the_file_for_images_is_taken_in_f16(tmp_path: Path, gguf_folder: Path) -> None:
    shutil.copytree(gguf_folder, tmp_path / "gguf")
    (tmp_path / "gguf" / "mmproj-demo-BF16.gguf").write_bytes(b"never downloaded")
    with stand_in_hub({"org/demo-GGUF": Repository(tmp_path / "gguf")}) as endpoint:
        assert Builder(tmp_path / "state", endpoint).manifest("org/demo-GGUF")["has_images"]
    assert not list(tmp_path.rglob("snapshots/*/mmproj-demo-BF16.gguf"))


def test_a_repository_may_have_brackets_in_its_names(tmp_path: Path, gguf_folder: Path) -> None:
    (tmp_path / "gguf").mkdir()
    shutil.copyfile(gguf_folder / "demo-Q8_0.gguf", tmp_path / "gguf" / "demo[v2]-Q8_0.gguf")
    with stand_in_hub({"org/demo": Repository(tmp_path / "gguf")}) as endpoint:
        assert Builder(tmp_path / "state", endpoint).manifest("org/demo:Q8_0")["model_id"] == "org/demo:Q8_0"


def test_a_connection_that_is_cut_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    path = tmp_path / "gguf" / "demo-F32.gguf"  # the library keeps blocks of 10 MiB
    write_gguf(Checkpoint.load(DEMO / "checkpoint"), path, "f32")
    repository = Repository(path.parent, cut={path.name})
    with stand_in_hub({"org/demo": repository}) as endpoint:
        manifest = Builder(tmp_path / "state", endpoint).manifest("org/demo")
    assert repository.sent_ranges == [f"bytes={10 << 20}-"]
    assert manifest["files"]["model.gguf"] == sha256(path)  # type: ignore[index]


def test_a_damaged_file_is_removed_and_downloaded_again(tmp_path: Path) -> None:
    repository = Repository(DEMO / "checkpoint", damaged={"model.safetensors"})
    with stand_in_hub({"org/demo": repository}) as endpoint:
        builder = Builder(tmp_path, endpoint)
        refused = builder.error("org/demo")
        assert "model.safetensors: damaged: its sha256 is not " in refused and refused.endswith(
            "build again to download it"
        )
        repository.damaged.clear()
        assert builder.manifest("org/demo")["model_id"] == "org/demo"


def test_a_place_for_downloads_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error was a bare errno, as in a read-only home."""
    (tmp_path / "file").touch()
    with stand_in_hub({"org/demo": Repository(DEMO / "checkpoint")}) as endpoint:
        error = Builder(tmp_path, endpoint).error("org/demo", HF_HUB_CACHE=str(tmp_path / "file" / "hub"))
    rule = f"{tmp_path / 'file'} is not a folder that you may write to: name another place for downloads by HF_HOME"
    assert error == f"error: org/demo@main: {rule}"


def test_a_model_that_is_larger_than_the_disk_is_not_begun(tmp_path: Path) -> None:
    repository = Repository(DEMO / "checkpoint", claimed_bytes={"model.safetensors": 10**18})
    with stand_in_hub({"org/demo": repository}) as endpoint:
        refused = Builder(tmp_path, endpoint).error("org/demo")
    assert refused.startswith("error: org/demo@main: 1,000,000,000.0 GB to download, and ")
    assert refused.endswith(": free some, or name another disk by HF_HOME")
    assert not list(tmp_path.rglob("snapshots/*/model.safetensors"))


class Lies:
    """A hub that names `outside`, a path beside the cache, where an honest one names its contents by a digest."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.outside = folder / "cache", folder / "outside"
        self.storage = self.cache / "models--org--demo"

    def refusal(self, monkeypatch: pytest.MonkeyPatch, **lies: Any) -> str:
        """Return the error of a download from this hub. Afterwards nothing is outside of the cache."""
        with stand_in_hub({"org/demo": Repository(DEMO / "checkpoint", **lies)}) as endpoint:
            monkeypatch.setattr(constants, "ENDPOINT", endpoint)
            url = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
            monkeypatch.setattr(constants, "HF_HUB_CACHE", str(self.cache))
            with pytest.raises(BuildError) as caught:
                checkpoint_folder("org/demo@main", Digests.beside(self.cache / "artifact"))
            assert [path for path in self.cache.parent.iterdir() if path != self.cache] == []
            return str(caught.value).replace(f"org/demo@main: the hub {endpoint} failed: ", "")


@pytest.mark.parametrize("is_absolute", [True, False], ids=["absolute", "relative"])
@pytest.mark.parametrize("header", ["ETag", "X-Linked-ETag", "X-Repo-Commit"])
def test_a_hub_cannot_name_a_file_outside_of_the_cache_by_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, *, is_absolute: bool
) -> None:
    lies = Lies(tmp_path)
    folder = lies.storage / ("snapshots" if header == "X-Repo-Commit" else "blobs")
    name = str(lies.outside) if is_absolute else os.path.relpath(lies.outside, folder)
    error = lies.refusal(monkeypatch, headers={header: name if header == "X-Repo-Commit" else f'"{name}"'})
    assert error.startswith(f"it answers with the {'commit' if header == 'X-Repo-Commit' else 'ETag'} {name!r}")
    missing = lies.refusal(monkeypatch, headers={header: name}, missing={"config.json"})
    assert missing.startswith(("404", "it answers with the"))


@pytest.mark.parametrize(
    "commit", ["/{}", "../../../outside", "main", "", None, 7, {"a": 1}, COMMIT.upper(), COMMIT + "\n"]
)
def test_a_hub_cannot_name_a_folder_outside_of_the_cache_by_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: object
) -> None:
    lies = Lies(tmp_path)
    named = commit.format(str(lies.outside)[1:]) if isinstance(commit, str) else commit
    assert "expected 40 hexadecimal digits" in lies.refusal(monkeypatch, commit=named)


@pytest.mark.parametrize("digest", ["{}", "../../../outside"])
def test_a_hub_cannot_name_a_file_outside_of_the_cache_by_the_digest_in_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    lies = Lies(tmp_path)
    path = digest.format(lies.outside)
    lfs = {"sha256": path, "oid": path, "size": 5, "pointerSize": 134}
    lies.refusal(monkeypatch, lies={"oid": path, "blobId": path, "lfs": lfs, "xetHash": "0" * 64})


@pytest.mark.parametrize(
    "lies",
    [
        {"size": "many"},
        {"size": [1]},
        {"lfs": 7},
        {"lfs": {"sha256": 1}},
    ],
)
def test_a_list_of_another_shape_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: dict[str, Any]
) -> None:
    """The error was a TypeError of the library."""
    assert "\n" not in Lies(tmp_path).refusal(monkeypatch, lies=lies)
