"""Models of the hub, from a stand-in hub with its faults."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download

from build_engines.__main__ import main
from build_engines.artifact import Manifest
from build_engines.catalog import Catalog
from build_engines.cpu_spec import ModelSource
from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.hub import HubReference, checkpoint_folder, reference_of_address
from build_engines.model_entry import ModelEntry
from build_engines.model_source import DEMO, check_converted, find_source, gguf_source
from tests.build_engines.stand_in_hub import COMMIT, TOKEN, Repository, share, stand_in_hub
from tests.build_engines.tiny_embedders import write_embedder
from tests.mounts import make_read_only, with_own_mounts


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


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("https://huggingface.co/a/b.c", "a/b.c"),
        ("huggingface.co/a/b/", "a/b"),
        ("hf.co/a/b:Q8_0", "a/b:Q8_0"),
        ("https://huggingface.co/a/b/tree/main", "a/b"),
        ("https://huggingface.co/a/b/tree/v1", "a/b@v1"),
        ("https://huggingface.co/a/b/blob/main/sub/b-Q8_0.gguf", "a/b:sub/b-Q8_0.gguf"),
        ("https://huggingface.co/a/b/resolve/v1/b.gguf?download=true", "a/b@v1:b.gguf"),
        ("a/b:Q8_0", "a/b:Q8_0"),
        ("https://example.com/a/b", "https://example.com/a/b"),
        ("folder/hf.co/a/b", "folder/hf.co/a/b"),
    ],
)
def test_a_page_of_the_hub_is_a_reference_as_people_paste_it(text: str, reference: str) -> None:
    assert reference_of_address(text) == reference


@pytest.mark.parametrize("text", ["", "folder", "a/b/c", "a/b@", "/abs/path", "a/b@x@y", "a/b:Q4_K_M"])
def test_a_malformed_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="no such folder, nor of the form OWNER/NAME@REVISION"):
        HubReference.parse(text)


NOWHERE = "http://127.0.0.1:9"


class Hub:
    """A cache of its own, and hubs for it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self._monkeypatch = folder / "cache", monkeypatch
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(self.cache))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        self.use(NOWHERE)

    def use(self, endpoint: str) -> None:
        """Ask this hub from now on."""
        self._monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        url = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        for module in (constants, file_download):  # releases before 1.0 read a copy
            self._monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", url, raising=False)

    @contextmanager
    def serving(self, **repositories: Repository) -> Iterator[str]:
        """Serve repositories by name, of `org` if they have no owner; yield the URL."""
        named = {name if "/" in name else f"org/{name}": each for name, each in repositories.items()}
        with stand_in_hub(named) as endpoint:
            self.use(endpoint)
            yield endpoint
        self.use(NOWHERE)

    @property
    def digests(self) -> Digests:
        return Digests.beside(self.cache / "artifact")

    def find(self, model: str, precision: str | None = None) -> ModelSource:
        return find_source(model, precision, self.digests)

    def refusal(self, model: str, precision: str | None = None) -> str:
        with pytest.raises(BuildError) as caught:
            self.find(model, precision)
        return str(caught.value)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(tmp_path, monkeypatch)


def folder_of(path: Path, *names: str) -> Path:
    """Make a folder with files of these names."""
    path.mkdir()
    for name in names:
        (path / name).write_text(name)
    return path


@pytest.fixture
def gguf_folder(tmp_path: Path) -> Path:
    """A repository of GGUF files."""
    return folder_of(tmp_path / "gguf", "demo-Q8_0.gguf", "demo-Q4_K_M.gguf", "mmproj-demo-f16.gguf")


def test_show_says_what_a_model_of_the_hub_is_without_its_weights(
    hub: Hub, gguf_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(model: str) -> dict[str, str]:
        assert main(["show", model, "--home", str(tmp_path)]) == 0
        return {line[:15].strip(): line[15:] for line in capsys.readouterr().out.splitlines()}

    with hub.serving(demo=Repository(DEMO / "checkpoint", revisions={"v1"}), files=Repository(gguf_folder)):
        checkpoint, files = shown("org/demo"), shown("hf.co/org/files:Q8_0")
        assert shown("org/demo@v1")["model"] == "org/demo@v1"
    assert checkpoint["model"] == "org/demo@main"
    assert checkpoint["architecture"] == "LlamaForCausalLM"
    assert (checkpoint["context"], checkpoint["tools"]) == ("2,048 tokens", "hermes")
    assert (checkpoint["chat template"], checkpoint["artifact"]) == ("yes", "none: `conch pull` makes one")
    assert files["GGUF file"] == "mmproj-demo-f16.gguf, 0.0 MB"  # the last of three
    assert "size" not in files
    assert not list(hub.cache.rglob("*.gguf")) and not list(hub.cache.rglob("*.safetensors"))


def test_a_checkpoint_is_built_and_again_without_a_network(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def built(*words: str) -> str:
        assert main(["build", *words, "--runtime", "synthetic", "--home", str(tmp_path / "state")]) == 0
        return capsys.readouterr().out

    with hub.serving(demo=Repository(DEMO / "checkpoint")):
        first = built("org/demo")
        assert hub.refusal("org/other").startswith("org/other@main: no such folder here, and no such repository")
        assert hub.refusal("org/demo@v9") == "org/demo@v9: the repository has no such revision"
    for words in (["org/demo"], [f"org/demo@{COMMIT}"], ["org/demo", "--checkpoint", "org/demo@main"]):
        caplog.clear()
        assert built(*words) == first
        assert "only its downloaded files are used: config.json, " in caplog.text
    assert hub.refusal("org/never").startswith(f"org/never@main: the hub {NOWHERE} failed: ")


def test_a_model_that_embeds_comes_with_its_pooling(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_embedder(tmp_path / "bert", "bert", pooling_mode="cls")
    with hub.serving(bert=Repository(folder)):
        assert main(["build", "org/bert", "--home", str(tmp_path / "state")]) == 0
    assert "warning" not in capsys.readouterr().err  # it has no chat template, and needs none
    [artifact] = (tmp_path / "state" / "artifacts").glob("org--bert-*")
    manifest = Manifest.load(artifact)
    assert (manifest.pooling, manifest.context_window) == ("cls", 256)
    assert "1_Pooling/config.json" in manifest.source
    [config] = (tmp_path / "state" / "repository" / "org--bert").glob("config.pbtxt")
    assert '\\"pooling\\":\\"cls\\"' in config.read_text()


def test_a_variant_of_a_checkpoint_is_quantized(hub: Hub) -> None:
    with hub.serving(demo=Repository(DEMO / "checkpoint")):
        source = hub.find("org/demo:Q4_K_M")
        refused, contradicted = hub.refusal("org/demo:Q4_K_X"), hub.refusal("org/demo:Q4_K_M", "f16")
    assert (source.model_id, source.precision) == ("org/demo:Q4_K_M", "q4_k_m")
    rule = "no GGUF file or precision Q4_K_X: the repository has no GGUF files; the precisions are f16, f32, q8_0, q2_k"
    assert refused.startswith(f"org/demo@main: {rule}")
    assert contradicted == "--precision f16: org/demo:Q4_K_M names a precision already: leave out --precision"


def test_gguf_files_are_found_by_precision_and_name_with_the_projector(hub: Hub, gguf_folder: Path) -> None:
    repository = Repository(gguf_folder)
    with hub.serving(gguf=repository, de__mo=repository):
        found = [hub.find(f"org/gguf{variant}") for variant in (":q8_0", ":demo-Q8_0.gguf", "")]
        named = gguf_source("mine", "org/gguf:Q8_0", None, hub.digests)
        missing, quantized = hub.refusal("org/gguf:Q2_K"), hub.refusal("org/gguf", "q8_0")
        unserved = hub.refusal("org/de__mo:Q8_0")
    files = [source.gguf and source.gguf.name for source in (*found, named)]
    assert files == ["demo-Q8_0.gguf", "demo-Q8_0.gguf", "demo-Q4_K_M.gguf", "demo-Q8_0.gguf"]
    assert {source.projector and source.projector.name for source in (*found, named)} == {"mmproj-demo-f16.gguf"}
    assert named.model_id == "mine"
    assert missing == "org/gguf@main: Q2_K: the repository's GGUF files are demo-Q4_K_M.gguf, demo-Q8_0.gguf"
    assert quantized == "--precision q8_0: a GGUF file keeps its precision: expected f16 or f32, for the KV cache"
    assert unserved.startswith("model id 'org/de__mo:Q8_0': letters, digits")
    assert unserved.endswith("`conch build NAME --gguf org/de__mo@main:Q8_0` serves it as NAME")
    assert not list(hub.cache.rglob("models--org--de__mo/snapshots"))
    assert hub.find("org/gguf:Q8_0").gguf == found[0].gguf  # the hub is gone
    file = gguf_folder / "demo-Q8_0.gguf"
    assert gguf_source("mine", str(file), None, hub.digests).gguf == file


def test_a_repository_with_both_kinds_is_converted_unless_a_file_is_named(hub: Hub, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(DEMO / "checkpoint", both)
    (both / "demo-Q4_K_M.gguf").write_text("GGUF")
    with hub.serving(both=Repository(both)):
        converted, taken = hub.find("org/both"), hub.find("org/both:Q4_K_M")
    assert converted.checkpoint is not None and converted.gguf is None
    assert taken.gguf is not None and taken.checkpoint is None


def test_a_split_model_without_a_part_is_refused(hub: Hub, tmp_path: Path) -> None:
    with hub.serving(split=Repository(folder_of(tmp_path / "split", "demo-Q8_0-00001-of-00002.gguf"))):
        refused = hub.refusal("org/split:Q8_0")
    assert refused == "org/split@main: demo-Q8_0-00002-of-00002.gguf: no such file in the repository"


def test_a_mistyped_folder_is_one_line(hub: Hub) -> None:
    for typo in ("./typo", "../typo"):
        assert hub.refusal(typo).endswith("/typo: no such folder, and not a name of the hub")


GEMMA = "Gemma2ForCausalLM is not converted"
FP8 = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "fp8"}}


def checkpoint_of(path: Path, **config: Any) -> Path:
    """Make the folder of a checkpoint that is not converted."""
    folder = folder_of(path, "model.safetensors", "tokenizer.json")
    (folder / "config.json").write_text(json.dumps({"architectures": ["Gemma2ForCausalLM"]} | config))
    return folder


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    """A checkpoint of an architecture that is not converted."""
    return checkpoint_of(tmp_path / "gemma")


def test_a_gguf_file_is_taken_in_place_of_a_checkpoint_that_is_not_converted(
    hub: Hub, gguf_folder: Path, gemma: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = Repository(folder_of(tmp_path / "others", "gemma-IQ2_M.gguf", "gemma-Q4_K_M.gguf"), base="org/gemma")
    own = Repository(gguf_folder, base="org/gemma")
    repositories = {"gemma": Repository(gemma), "others": others, "gemma-GGUF": own}
    with hub.serving(**repositories):
        taken = [hub.find(f"org/gemma{variant}") for variant in ("", ":Q8_0", ":IQ2_M")]
        refused, pinned = hub.refusal("org/gemma:Q2_K"), hub.refusal(f"org/gemma@{COMMIT}")
    names = [f"{source.model_id} {source.gguf and source.gguf.name}" for source in taken]
    assert names == ["org/gemma demo-Q4_K_M.gguf", "org/gemma:Q8_0 demo-Q8_0.gguf", "org/gemma:IQ2_M gemma-IQ2_M.gguf"]
    assert f"org/gemma@main: {GEMMA}: taking demo-Q4_K_M.gguf of org/gemma-GGUF" in caplog.text
    advice = "take a GGUF file of the model, such as those of org/others, org/gemma-GGUF"
    assert refused == f"org/gemma@main: {GEMMA}: {advice} (none has Q2_K)"
    assert pinned.startswith(f"org/gemma@{COMMIT}: Gemma2") and pinned.endswith(advice)
    assert not list(hub.cache.rglob("snapshots/*/model.safetensors"))


def test_a_later_build_takes_the_same_gguf_file(hub: Hub, gguf_folder: Path, gemma: Path) -> None:
    first, newer = Repository(gguf_folder, base="org/gemma"), Repository(gguf_folder, base="org/gemma")
    with hub.serving(gemma=Repository(gemma), first=first):
        taken = hub.find("org/gemma")
    with hub.serving(gemma=Repository(gemma), newer=newer, first=first):
        assert hub.find("org/gemma") == taken
    assert hub.find("org/gemma") == taken  # the hub is gone
    with hub.serving(gemma=Repository(gemma), newer=newer):
        assert "org--newer" in str(hub.find("org/gemma").gguf)  # the first repository is


@pytest.mark.parametrize(
    ("config", "missing", "reason"),
    [
        (FP8, "", "config.json: quantization_config={'quant_method': 'fp8'}: expected None"),
        ({"architectures": ["MistralForCausalLM"]}, "tokenizer.json", "no tokenizer.json, and no other kind of"),
        ({"architectures": ["MistralForCausalLM"]}, "model.safetensors", "no safetensors, and no other kind of"),
        ({"architectures": ["XLMRobertaModel"]}, "", "XLMRobertaModel is not converted"),  # bge-m3
        ({"architectures": ["NomicBertModel"]}, "", "NomicBertModel is not converted"),
    ],
)
def test_a_gguf_file_is_taken_before_the_weights_of_a_checkpoint_are_downloaded(
    config: dict[str, Any], missing: str, reason: str, hub: Hub, gguf_folder: Path, tmp_path: Path
) -> None:
    folder = checkpoint_of(tmp_path / "checkpoint", max_position_embeddings=64, **config)
    (folder / (missing or "absent")).unlink(missing_ok=True)
    with hub.serving(mine=Repository(folder)):
        assert hub.refusal("org/mine").startswith(f"org/mine@main: {reason}")
    with hub.serving(mine=Repository(folder), others=Repository(gguf_folder, base="org/mine")):
        assert hub.find("org/mine").gguf
    assert not list(hub.cache.rglob("snapshots/*/model.safetensors"))


def test_a_gguf_file_beside_a_checkpoint_that_is_not_converted_is_taken_first(
    hub: Hub, gguf_folder: Path, gemma: Path
) -> None:
    (gemma / "gemma-Q4_K_M.gguf").write_text("GGUF")
    with hub.serving(gemma=Repository(gemma), quantized=Repository(gguf_folder, base="org/gemma")):
        assert "org--gemma" in str(hub.find("org/gemma").gguf)


@pytest.mark.parametrize(
    ("config", "readme"),
    [
        ({"_name_or_path": "org/gemma"}, ""),
        ({"_name_or_path": "/home/me/gemma"}, "---\nlicense: gemma\nbase_model: org/gemma\n---\n"),
        ({}, "---\nbase_model:\n- org/gemma\n---\n"),
    ],
)
def test_the_refusal_of_a_folder_names_gguf_files_of_its_model(
    config: dict[str, Any], readme: str, hub: Hub, gguf_folder: Path, tmp_path: Path
) -> None:
    folder = checkpoint_of(tmp_path / "mine", **config)
    (folder / "README.md").write_text(readme)

    def refusal() -> str:
        with pytest.raises(BuildError) as caught:
            check_converted(folder)
        return str(caught.value)

    rule = f"{folder}: {GEMMA}: take a GGUF file of the model, "
    with hub.serving(quantized=Repository(gguf_folder, base="org/gemma")):
        assert refusal() == f"{rule}such as those of org/quantized, made of org/gemma"
    assert refusal().startswith(f"{rule}one of the hub, or one that convert_hf_to_gguf.py of llama.cpp makes")


def test_a_folder_that_is_not_converted_is_refused_by_build(
    gemma: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([str(gemma)], ["mine", "--checkpoint", str(gemma)]):
        assert main(["build", *words, "--home", str(tmp_path / "home")]) == 1
        assert capsys.readouterr().err.startswith(f"error: {gemma}: {GEMMA}")


def test_a_model_of_the_catalog_is_the_gguf_file_that_it_names(hub: Hub, tmp_path: Path) -> None:
    files = folder_of(tmp_path / "qwen", "Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q8_0.gguf")
    experts = folder_of(
        tmp_path / "oss", "gpt-oss-120b-mxfp4-00001-of-00002.gguf", "gpt-oss-120b-mxfp4-00002-of-00002.gguf"
    )
    repositories = {"Qwen/Qwen3-8B-GGUF": Repository(files), "ggml-org/gpt-oss-120b-GGUF": Repository(experts)}
    with hub.serving(**repositories):
        dense, split = hub.find("qwen3:8b"), hub.find("gpt-oss:120b")
        refused = hub.refusal("Qwen/Qwen3-8B", "q8_0")
    assert (dense.model_id, dense.gguf and dense.gguf.name, dense.precision) == (
        "qwen3:8b",
        "Qwen3-8B-Q4_K_M.gguf",
        "f16",
    )
    assert dense.named_facts["sampling"] == {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0}
    assert split.gguf is not None and split.gguf.name == "gpt-oss-120b-mxfp4-00001-of-00002.gguf"
    assert refused == "--precision q8_0: a GGUF file keeps its precision: expected f16 or f32, for the KV cache"


@pytest.mark.parametrize("entry", [each for each in Catalog.load() if each.gguf], ids=lambda entry: entry.aliases[0])
def test_a_gguf_file_of_the_catalog_is_a_reference_of_the_hub(entry: ModelEntry) -> None:
    assert entry.gguf is not None
    reference = HubReference.find(entry.gguf)
    assert reference is not None and reference.variant and "gguf" in reference.repository.lower()


def test_an_unconverted_model_of_the_catalog_is_refused_without_a_network(hub: Hub) -> None:
    refused = hub.refusal("gemma2:9b")
    assert refused == f"google/gemma-2-9b-it@main: {GEMMA}: take a GGUF file of the model"


def test_a_gated_repository_needs_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub.serving(demo=Repository(DEMO / "checkpoint", is_gated=True)):
        assert "org/demo@main: a gated repository: accept its licence on its page" in hub.refusal("org/demo")
        with monkeypatch.context() as patch:
            patch.setenv("HF_TOKEN", TOKEN)
            downloaded = hub.find("org/demo")
        assert hub.find("org/demo") == downloaded  # a downloaded model needs no hub


def test_the_file_for_images_is_taken_in_f16(hub: Hub, gguf_folder: Path) -> None:
    (gguf_folder / "mmproj-demo-BF16.gguf").write_bytes(b"never downloaded")
    with hub.serving(demo=Repository(gguf_folder)):
        projector = hub.find("org/demo").projector
    assert projector is not None and projector.name == "mmproj-demo-f16.gguf"
    assert not list(hub.cache.rglob("snapshots/*/mmproj-demo-BF16.gguf"))


def test_a_repository_may_have_brackets_in_its_names(hub: Hub, tmp_path: Path) -> None:
    with hub.serving(demo=Repository(folder_of(tmp_path / "gguf", "demo[v2]-Q8_0.gguf"))):
        gguf = hub.find("org/demo:Q8_0").gguf
    assert gguf is not None and gguf.name == "demo[v2]-Q8_0.gguf"


@pytest.mark.skipif(huggingface_hub.__version__ < "1", reason="huggingface_hub resumes within a build from 1.0 on")
def test_a_connection_that_is_cut_is_resumed(hub: Hub, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "gguf")
    content = os.urandom(11 << 20)  # the library keeps blocks of 10 MiB
    (folder / "demo-F32.gguf").write_bytes(content)
    repository = Repository(folder, cut={"demo-F32.gguf"})
    with hub.serving(demo=repository):
        gguf = hub.find("org/demo").gguf
    assert repository.sent_ranges == [f"bytes={10 << 20}-"]
    assert gguf is not None and gguf.read_bytes() == content


@pytest.mark.parametrize("has_links", [True, False])
def test_a_damaged_file_is_removed_and_downloaded_again(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    # Without symbolic links, as on exFAT and SMB, the cache has no sha256 in the name of a file.
    monkeypatch.setattr(file_download, "are_symlinks_supported", lambda cache_dir=None: has_links)
    repository = Repository(DEMO / "checkpoint", damaged={"model.safetensors"})
    with hub.serving(demo=repository):
        refused = hub.refusal("org/demo")
        assert "model.safetensors: damaged: its sha256 is not " in refused
        assert refused.endswith("build again to download it")
        repository.damaged.clear()
        checkpoint = hub.find("org/demo").checkpoint
    assert checkpoint is not None and (checkpoint / "model.safetensors").is_symlink() == has_links
    assert hub.find("org/demo").checkpoint == checkpoint  # the hub is gone


def test_a_file_in_the_store_of_all_repositories_is_compared_with_its_sha256(hub: Hub) -> None:
    """Its name there is a hash of another kind, and the file was taken for damaged."""
    with hub.serving(demo=Repository(DEMO / "checkpoint")):
        checkpoint = hub.find("org/demo").checkpoint
        assert checkpoint is not None
        stored = share((checkpoint / "model.safetensors").resolve())
        assert hub.find("org/demo").checkpoint == checkpoint
    assert hub.find("org/demo").checkpoint == checkpoint  # the hub is gone
    stored.write_bytes(b"x" + stored.read_bytes()[1:])
    assert "model.safetensors: damaged: its sha256 is not " in hub.refusal("org/demo")
    assert not stored.exists()


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_cache_that_is_only_read_serves_the_files_that_it_has(hub: Hub, *, is_moved: bool) -> None:
    """The commit of the branch was written at each build."""

    def build_read_only() -> tuple[Path, str | None]:
        make_read_only(hub.cache)
        return checkpoint_folder("org/demo@main", hub.digests)

    with hub.serving(demo=Repository(DEMO / "checkpoint")):
        built = checkpoint_folder("org/demo@main", hub.digests)
        if is_moved:
            (built[0].parents[1] / "refs" / "main").write_text("f" * 40)
        assert with_own_mounts(build_read_only) == built
        (built[0] / "config.json").unlink()
        with pytest.raises(BuildError, match="is not a folder that you may write to: name another place"):
            with_own_mounts(build_read_only)


def test_a_cache_without_locks_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub was named, which answers."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)  # as on Lustre, and on NFS without its lock daemon
    with hub.serving(demo=Repository(DEMO / "checkpoint")):
        refused = hub.refusal("org/demo")
    rule = "this file system has no locks: name another place for downloads by HF_HOME"
    assert refused == f"org/demo@main: {hub.cache}: {rule}"


def test_a_place_for_downloads_that_cannot_be_written_is_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error was a bare errno, as in a read-only home."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    with hub.serving(demo=Repository(DEMO / "checkpoint")):
        refused = hub.refusal("org/demo")
    rule = f"{tmp_path / 'file'} is not a folder that you may write to: name another place for downloads by HF_HOME"
    assert refused == f"org/demo@main: {rule}"


def test_a_model_that_is_larger_than_the_disk_is_not_begun(hub: Hub) -> None:
    with hub.serving(demo=Repository(DEMO / "checkpoint", claimed_bytes={"model.safetensors": 10**18})):
        refused = hub.refusal("org/demo")
    assert refused.startswith("org/demo@main: 1,000,000,000.0 GB to download, and ")
    assert refused.endswith(": free some, or name another disk by HF_HOME")
    assert not list(hub.cache.rglob("snapshots/*/model.safetensors"))


class Lies:
    """A hub that names `outside`, a path beside the cache, where an honest one names its contents by a digest."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.outside = hub, hub.cache.parent / "outside"
        self.storage = hub.cache / "models--org--demo"

    def refusal(self, revision: str = "main", **lies: Any) -> str:
        """Return the error of a download from this hub. Afterwards nothing is outside of the cache."""
        with self.hub.serving(demo=Repository(DEMO / "checkpoint", **lies)) as endpoint:
            with pytest.raises(BuildError) as caught:
                checkpoint_folder(f"org/demo@{revision}", self.hub.digests)
            assert [path for path in self.hub.cache.parent.iterdir() if path != self.hub.cache] == []
            return str(caught.value).replace(f"org/demo@main: the hub {endpoint} failed: ", "")


@pytest.fixture
def lies(hub: Hub) -> Lies:
    return Lies(hub)


@pytest.mark.parametrize("is_absolute", [True, False], ids=["absolute", "relative"])
@pytest.mark.parametrize("header", ["ETag", "X-Linked-ETag", "X-Repo-Commit"])
def test_a_hub_cannot_name_a_file_outside_of_the_cache_by_a_header(
    lies: Lies, header: str, *, is_absolute: bool
) -> None:
    folder = lies.storage / ("snapshots" if header == "X-Repo-Commit" else "blobs")
    name = str(lies.outside) if is_absolute else os.path.relpath(lies.outside, folder)
    error = lies.refusal(headers={header: name if header == "X-Repo-Commit" else f'"{name}"'})
    assert error.startswith(f"the hub answers with the {'commit' if header == 'X-Repo-Commit' else 'ETag'} {name!r}")
    missing = lies.refusal(headers={header: name}, missing={"config.json"})
    assert missing.startswith(("404", "the hub answers with the"))


@pytest.mark.parametrize(
    "commit", ["/{}", "../../../outside", "main", "", None, 7, {"a": 1}, COMMIT.upper(), COMMIT + "\n"]
)
def test_a_hub_cannot_name_a_folder_outside_of_the_cache_by_a_commit(lies: Lies, commit: object) -> None:
    named = commit.format(str(lies.outside)[1:]) if isinstance(commit, str) else commit
    assert "expected 40 hexadecimal digits" in lies.refusal(commit=named)


@pytest.mark.parametrize("digest", ["{}", "../../../outside"])
def test_a_hub_cannot_name_a_file_outside_of_the_cache_by_the_digest_in_a_list(lies: Lies, digest: str) -> None:
    path = digest.format(lies.outside)
    lfs = {"sha256": path, "oid": path, "size": 5, "pointerSize": 134}
    lies.refusal(lies={"oid": path, "blobId": path, "lfs": lfs, "xetHash": "0" * 64})


@pytest.mark.parametrize(
    "revision", ["../../../../outside", "{}", "a/../../b", "..", "a//b", ".a", "a.lock", "a~1", "a b"]
)
def test_a_revision_cannot_name_a_file_outside_of_the_cache(lies: Lies, revision: str) -> None:
    """The cache keeps the commit of a revision in a file of its name, and a mirror may take any revision."""
    revision = revision.format(lies.outside)
    error = lies.refusal(revision=revision, revisions={revision})
    assert error.startswith(f"org/demo: revision {revision!r}: expected a branch, a tag or a commit by git's rules")


@pytest.mark.parametrize("revision", ["refs/pr/1", "feature/x", "v1.0"])
def test_a_revision_may_have_parts(hub: Hub, revision: str) -> None:
    with hub.serving(demo=Repository(DEMO / "checkpoint", revisions={revision})):
        checkpoint_folder(f"org/demo@{revision}", hub.digests)
    assert (hub.cache / "models--org--demo" / "refs" / revision).read_text() == COMMIT


@pytest.mark.parametrize(
    "name", ["../../1_Pooling/config.json", "/outside_Pooling/config.json", "\0_Pooling/config.json"]
)
def test_a_list_cannot_name_a_file_outside_of_the_cache(lies: Lies, name: str) -> None:
    error = lies.refusal(listed={name})
    assert error == f"org/demo@main: {name!r}: not the name of a file in a repository"


@pytest.mark.parametrize("entry", [{"size": "many"}, {"size": [1]}, {"lfs": 7}, {"lfs": {"sha256": 1}}], ids=str)
def test_a_list_of_another_shape_is_one_line(lies: Lies, entry: dict[str, Any]) -> None:
    """The error was a TypeError of the library."""
    assert "\n" not in lies.refusal(lies=entry)


def test_a_folder_with_gguf_files_alone_is_its_only_model(tmp_path: Path) -> None:
    for name in ("mine-Q8_0.gguf", "mmproj-F16.gguf"):
        (tmp_path / name).touch()
    source = find_source(str(tmp_path), None, Digests(tmp_path / "digests"))
    assert (source.model_id, source.gguf) == ("mine-Q8_0", tmp_path / "mine-Q8_0.gguf")
    (tmp_path / "other.gguf").touch()
    with pytest.raises(BuildError, match=r"name one of its GGUF files: mine-Q8_0\.gguf, other\.gguf"):
        find_source(str(tmp_path), None, Digests(tmp_path / "digests"))
    (tmp_path / "config.json").touch()
    assert find_source(str(tmp_path), None, Digests(tmp_path / "digests")).checkpoint == tmp_path
