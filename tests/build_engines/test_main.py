"""The command line: exit codes and messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from build_engines import artifact
from build_engines.__main__ import main
from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.model_source import find_source
from model_repository.capabilities import Capability
from model_repository.model_facts import Task
from model_repository.model_parameters import Load, ModelParameters, Preset
from tests.build_engines.test_render import parameters_in
from tests.build_engines.tiny_adapter import random_pairs, tensors_of, write_adapter
from tests.build_engines.tiny_checkpoint import random_weights
from tests.llama_packages import install_build


def read_ensemble(repository: Path, ensemble: str) -> ModelParameters:
    """Return an ensemble's parameters as the frontend reads them."""
    return parameters_in((repository / ensemble / "config.pbtxt").read_text())


def test_a_checkpoint_is_built_and_rendered(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state_dir = tmp_path / "state"
    assert main(["build", "tiny", "--checkpoint", str(checkpoint), "--home", str(state_dir)]) == 0
    (folder,) = (path for path in (state_dir / "artifacts").iterdir() if path.is_dir())
    assert capsys.readouterr().out.splitlines() == [f"artifact    {folder}", f"repository  {state_dir / 'repository'}"]
    assert str(folder) in (state_dir / "repository" / "tiny__engine" / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (None, "no chat template: "),
        ("{% for m in messages %}{{ m.content }}", "a broken chat template (line 1: "),
        ("{{ messages | unknown }}", "a broken chat template (line 1: "),
    ],
)
def test_a_model_without_a_usable_chat_template_is_built_with_a_warning(
    template: str | None, fault: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each build says it, also of an artifact that is there already. With a broken one the server did not start."""
    arguments = ["build", "tiny", "--runtime", "synthetic", "--checkpoint", str(checkpoint)]
    arguments += ["--home", str(tmp_path)]
    assert main(arguments) == 0
    assert "chat template" not in capsys.readouterr().err
    (checkpoint / "tokenizer_config.json").write_text("{}")
    if template is not None:
        (checkpoint / "chat_template.jinja").write_text(template)
    for _ in range(2):
        assert main(arguments) == 0
        said = capsys.readouterr().err
        assert f"warning: tiny has {fault}" in said
        assert "chat requests are refused; put chat_template.jinja" in said


def test_marks_of_calls_and_thinking_that_no_format_has_are_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["build", "tiny", "--runtime", "synthetic", "--checkpoint", str(checkpoint)]
    arguments += ["--home", str(tmp_path)]
    hermes = """{{ '<tool_call>{"name": f, "arguments": a}' }}"""
    minimax_m3 = """{%- set ns = ']<]minimax[>[' %}{{ ns ~ '<tool_call>' ~ ns ~ '<invoke name="f">' if tools }}"""
    written = f"{minimax_m3}\n{{{{ ns ~ '<invoke name=\"' ~ m.tool_calls[0].function.name ~ '\">' if m.tool_calls }}}}"
    for template, calls, thinking in (
        ("", None, None),
        ("[!CALL]", "", None),
        (hermes, None, None),
        (minimax_m3, ", <tool_call>", None),
        (written, ', ]<]minimax[>[<invoke name="', None),
        ("<mm:think>{{ '</mm:think>' }}", "", ", </mm:think>"),
    ):
        tools = "{{ tools | tojson }}" if template else ""
        source = f"{tools}{{% for m in messages %}}{{{{ m.content }}}}{template}{{% endfor %}}"
        (checkpoint / "chat_template.jinja").write_text(source)
        assert main(arguments) == 0
        said = capsys.readouterr().err
        for kind, marks in (("tool calls", calls), ("thinking", thinking)):
            warning = f"warning: tiny has an unknown format of {kind}"
            assert (warning in said) is (marks is not None)
            assert marks is None or f"{warning}{marks}: " in said
    assert main(["show", "tiny", "--home", str(tmp_path)]) == 0
    assert "unknown thinking" in capsys.readouterr().out
    assert main([*arguments, "--tool-call-format", "plain"]) == 0
    assert "unknown format of tool calls" not in capsys.readouterr().err


def test_options_reach_the_artifact_and_the_repository(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ["build", "fast", "--runtime", "synthetic", "--checkpoint", str(checkpoint)]
    arguments += ["--option", "itl_ms=20", "--option", "num_tokens=5", "--context-window", "99"]
    arguments += ["--max-sequences", "3", "--max-waiting", "4", "--num-threads", "5", "--stream-interval-ms", "66"]
    assert main([*arguments, "--home", str(tmp_path)]) == 0
    model = read_ensemble(tmp_path / "repository", "fast")
    assert (model.max_sequences, model.max_waiting, model.num_threads, model.stream_interval_ms) == (3, 4, 5, 66)
    assert (model.context_window, model.options) == (99, {"itl_ms": "20", "num_tokens": "5"})


def test_a_model_of_the_store_is_built_by_its_name_without_its_source(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path)]
    assert main(["build", "kept", "--checkpoint", str(checkpoint), *home]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("artifact ")]
    assert main(["build", "kept", "--alias", "same", *home]) == 0
    assert line in capsys.readouterr().out
    assert read_ensemble(tmp_path / "repository", "kept").aliases == ("same",)
    assert main(["build", "kept", "--precision", "q8_0", *home]) == 1
    assert "--precision: kept is in the store without its source: name its file" in capsys.readouterr().err
    assert main(["build", "kept", "--checkpoint", str(checkpoint), "--precision", "q8_0", *home]) == 0
    capsys.readouterr()
    assert main(["build", "kept", *home]) == 1
    assert "kept: there are several artifacts: name one of kept-" in capsys.readouterr().err
    older = next((tmp_path / "artifacts").glob("kept-*/manifest.json"))
    older.write_text(older.read_text().replace(f'"format": {artifact.FORMAT}', '"format": 1'))
    assert main(["build", "kept", *home]) == 0  # the other one


def test_a_model_of_the_store_keeps_its_names_and_its_loading(checkpoint: Path, tmp_path: Path) -> None:
    home = ["--home", str(tmp_path)]
    assert main(["build", "kept", "--checkpoint", str(checkpoint), "--alias=same", "--pin", *home]) == 0
    assert main(["build", "kept", "--load=demand", *home]) == 0
    assert main(["build", "kept", *home]) == 0
    kept = read_ensemble(tmp_path / "repository", "kept")
    assert (kept.aliases, kept.load, kept.is_pinned) == (("same",), Load.DEMAND, True)
    [folder] = tmp_path.glob("artifacts/kept-*/")
    assert main(["render", str(folder), "--load=start", f"--repository={tmp_path / 'other'}"]) == 0
    assert main(["render", f"--repository={tmp_path / 'other'}"]) == 0  # again, with its own settings
    assert read_ensemble(tmp_path / "other", "kept").load is Load.START


def test_the_demo_model_has_its_adapters_and_images_and_the_synthetic_one_has_neither(tmp_path: Path) -> None:
    source = find_source("demo", None, Digests())
    assert set(source.adapters) == {"demo-formal", "demo-pictures", "demo-thinking"}
    assert source.projector is not None and source.projector.is_file()
    assert main(["build", "demo", "--runtime", "synthetic", "--home", str(tmp_path)]) == 0
    model = read_ensemble(tmp_path / "repository", "demo")
    assert (model.adapters, Capability.IMAGES in model.capabilities) == ({}, False)


def test_the_demo_embedder_pools_and_generates_nothing(tmp_path: Path) -> None:
    assert main(["build", "demo-embedder", "--home", str(tmp_path)]) == 0
    model = read_ensemble(tmp_path / "repository", "demo-embedder")
    assert (model.task, model.context_window, model.adapters) == (Task.EMBED, 256, {})


def test_an_artifact_that_is_named_twice_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers of GPUs are kept by folder, which silently made one of two equal folders."""
    assert main(["build", "one", "--checkpoint", str(checkpoint), "--home", str(tmp_path)]) == 0
    [folder] = [str(path) for path in (tmp_path / "artifacts").iterdir() if path.is_dir()]
    assert main(["render", folder, folder, "--repository", str(tmp_path / "twice")]) == 1
    assert f"error: {folder}: named twice" in capsys.readouterr().err


# --- as in a pod of the chart -----------------------------------------------------------------------------------------


class Pod:
    """The containers of a pod before the server: one builds, the next one renders."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.store, self.state, self._folder, self._checkpoint = folder / "store", folder / "state", folder, checkpoint

    def artifact(self, *options: str, kept: str = "tiny-0123", former: str = "former", name: str = "tiny") -> Path:
        """Build or find the artifact, and render it under a name; return its folder."""
        homes = [f"--kept={self._folder / home}" for home in (kept, former)]
        build = ["build", name, f"--checkpoint={self._checkpoint}", "--runtime=synthetic", f"--home={self.store}"]
        link, repository = self.state / "artifact", self.state / "repository"
        assert main([*build, *homes, f"--link={link}", *options]) == 0
        assert main(["render", str(link), f"--repository={repository}", f"--name={name}"]) == 0
        found = read_ensemble(repository, name)
        assert found.model_id == name
        return Path(found.artifact_dir)

    def built(self) -> set[Path]:
        """All artifacts of the store."""
        return set((self.store / "artifacts").glob("[!.]*/"))


@pytest.fixture
def pod(checkpoint: Path, tmp_path: Path) -> Pod:
    return Pod(tmp_path, checkpoint)


def test_a_pod_finds_its_artifact_without_the_sources_and_under_another_name(pod: Pod, checkpoint: Path) -> None:
    artifact_dir = pod.artifact()
    assert not (pod.store / "repository").exists()
    checkpoint.rename(checkpoint.with_name("gone"))
    assert pod.artifact(name="other") == pod.artifact() == artifact_dir
    assert pod.built() == {artifact_dir}


def test_an_incomplete_artifact_is_not_taken(pod: Pod) -> None:
    table = pod.artifact() / "byte_table.npz"
    table.unlink()
    assert pod.artifact() == table.parent
    assert table.exists()


def test_a_default_that_is_written_out_finds_the_artifact_of_the_store(pod: Pod) -> None:
    assert pod.artifact() == pod.artifact("--precision=f16", kept="tiny-4567")
    assert pod.artifact("--precision=f32", kept="tiny-89ab") in pod.built()
    assert len(pod.built()) == 2


def test_an_artifact_of_another_format_is_built_again_and_a_rollback_finds_its_own(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pod found the manifest of the release before, did not build, and could not render, for ever."""
    old, now, later = pod.artifact(), artifact.FORMAT, artifact.FORMAT + 1
    with monkeypatch.context() as newer:
        newer.setattr(artifact, "FORMAT", later)
        new = pod.artifact()
        assert new != old
        assert f"not used    {tmp_path / 'tiny-0123' / 'artifacts' / old.name}" in caplog.text
        assert f"format {now}, expected {later}: build it again" in caplog.text
        assert pod.artifact() == new
    assert pod.artifact() == old
    assert pod.built() == {old, new}


def test_an_artifact_in_the_folder_of_the_chart_before_is_found(pod: Pod, tmp_path: Path) -> None:
    built = pod.artifact()
    former = tmp_path / "former" / "artifacts" / built.name
    former.parent.mkdir(parents=True)
    built.rename(former)  # the link in the folder of now is broken
    assert pod.artifact() == pod.artifact(kept="tiny-4567") == former
    assert pod.artifact(former="of-another-name") == former
    assert pod.built() == set()


def test_an_alias_may_become_the_name_of_an_artifact(checkpoint: Path, tmp_path: Path) -> None:
    home, repository = tmp_path / "home", tmp_path / "repository"
    build = ["build", "tiny", f"--checkpoint={checkpoint}", "--runtime=synthetic", f"--home={home}", "--alias=other"]
    assert main([*build, f"--link={tmp_path / 'artifact'}", "--alias=third"]) == 0
    assert main(["render", str(tmp_path / "artifact"), f"--repository={repository}", "--name=other"]) == 0
    assert (read_ensemble(repository, "other").aliases) == ("third",)


@pytest.mark.parametrize(
    ("words", "in_file"),
    [
        (["tiny", "--alias=other", "--max-sequences=3", "--num-threads=2", "--stream-interval-ms=66"], ""),
        (["tiny", "--max-waiting=4", "--tokenizer-instances=2", "--adapter-root=.", "--max-adapter-rank=8"], ""),
        (["models.yaml"], "replicas: 2, max-adapters: 3, adapter-root: ."),
        (["tiny", "--load=demand", "--keep-alive=0", "--pin"], ""),
    ],
)
def test_a_repository_is_rendered_again_with_its_artifacts_and_settings(
    words: list[str], in_file: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = f"a: {{checkpoint: {checkpoint}, runtime: synthetic}}"  # behind tiny
    presets = "presets: {brief: {from: tiny, system: x, default: {stop: [a]}}}"
    Path("models.yaml").write_text(f"models: {{tiny: {{checkpoint: {checkpoint}, {in_file}}}, {other}}}\n{presets}")
    source = [] if in_file else [f"--checkpoint={checkpoint}"]
    assert main(["build", *words, *source, "--home=home", "--repository=repository"]) == 0
    before = {path: path.read_bytes() for path in Path("repository").rglob("*") if path.is_file()}
    for path in Path("repository").glob("*__engine/1/model.py"):
        path.write_text("import old")
    assert main(["render", "--repository=repository"]) == 0
    assert {path: path.read_bytes() for path in Path("repository").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--max-sequences=3"], "ARTIFACT: required with options; without both, the repository is rendered again"),
        (["--name=other"], "ARTIFACT: required with options; without both, the repository is rendered again"),
        ([], "repository: no model in it"),
    ],
)
def test_a_repository_that_cannot_be_rendered_again_is_refused(
    words: list[str], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["render", "--repository=repository", *words]) == 1
    assert capsys.readouterr().err == f"error: {rule}\n"


# --- files of models --------------------------------------------------------------------------------------------------


def test_a_file_names_several_models_with_options(checkpoint: Path, tmp_path: Path) -> None:
    models = tmp_path / "conch.yaml"
    models.write_text(
        f"""models:
  demo:
  {checkpoint}:
    alias: [gpt-4o, gpt-4o-mini]
    default: {{chat_max_tokens: null, include_stop_str_in_output: true}}
    load: demand
    keep-alive: 5m
    pin: true
    max-sequences: 3
    runtime: llama_cpp
    speculative: ngram
  other:
    checkpoint: {checkpoint}
    context-window: 64
    keep-work: false
    alias: null
presets:
  brief:
    from: other
    system: |
      Be brief.
    default: {{temperature: 0.5, stop: END}}
  plain: {{from: other}}
"""
    )
    (tmp_path / "presets.json").write_text(json.dumps({checkpoint.name: {"brief": {}, "kept": {}}}))
    assert main(["build", str(models), "--runtime", "synthetic", "--home", str(tmp_path)]) == 0
    named = read_ensemble(tmp_path / "repository", checkpoint.name)
    assert (named.aliases, named.max_sequences) == (("gpt-4o", "gpt-4o-mini"), 3)
    assert (named.runtime, named.speculative) == ("llama_cpp", "ngram")
    assert named.defaults == {"chat_max_tokens": None, "include_stop_str_in_output": True}
    assert (named.load, named.keep_alive_s, named.is_pinned) == (Load.DEMAND, 300, True)
    other = read_ensemble(tmp_path / "repository", "other")
    assert (other.context_window, other.aliases, other.max_sequences) == (64, (), 16)
    assert (other.load, other.keep_alive_s, other.is_pinned) == (Load.START, None, False)
    assert (other.runtime, other.speculative) == ("synthetic", None)
    brief = Preset(system="Be brief.", defaults={"temperature": 0.5, "stop": ("END",)})
    assert (other.presets, named.presets) == ({"brief": brief, "plain": Preset()}, {"kept": Preset()})
    assert read_ensemble(tmp_path / "repository", "demo").runtime == "synthetic"


def test_paths_in_the_file_of_models_are_relative_to_it(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were relative to the current folder, and `~` was the name of a folder."""
    (tmp_path / "files").mkdir()
    checkpoint.rename(tmp_path / "files" / "tiny")
    adapter = write_adapter(tmp_path / "files" / "lora", tensors_of(random_pairs(random_weights(), ("q_proj",))))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path / "files"))
    (tmp_path / "files" / "conch.yaml").write_text(
        f"""models:
  tiny: {{adapter: [first=lora], adapter-root: lora}}
  other: {{checkpoint: ~/tiny, adapter: {{second: ~/lora, third: {adapter}}}}}
"""
    )
    assert main(["build", "../files/conch.yaml", "--home", str(tmp_path)]) == 0
    tiny = read_ensemble(tmp_path / "repository", "tiny")
    assert tiny.adapter_root is not None
    assert (list(tiny.adapters), tiny.adapter_root.folder.resolve()) == (["first"], tmp_path / "files" / "lora")
    assert list(read_ensemble(tmp_path / "repository", "other").adapters) == ["second", "third"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {demo: {precison: f16}}", "models.demo: precison: `build` has no such option"),
        ("models: {demo: [f16]}", "models.demo: expected a text as the name, and an object of options of `build`"),
        ("demo: {}", "expected one key, `models`, an object with an entry for each model id"),
        ("models: {demo: , demo: }", "demo: given twice"),
        ("models: {demo: {max_sequences: 2}}", "`build` has no such option; did you mean max-sequences?"),
        ("models: {demo: {state-dir: x}}", "models.demo: state-dir: `build` has no such option"),
        ("models: {demo: {max-sequences: few}}", "models.demo: argument --max-sequences: invalid int value: 'few'"),
        ("models: {demo: {max-sequences: false}}", "models.demo: max-sequences: False: expected a text or a number"),
        (
            "models: {demo: {alias: [[a], b]}}",
            "models.demo: alias: [['a'], 'b']: expected a list of texts, or an object",
        ),
        ("models: {demo: {default: {x: 2024-01-01}}}", "expected a list of texts, or an object"),
        ("models: {demo: {dry-run: few}}", "models.demo: dry-run: few: expected true or false"),
        ("models: {demo: {max-sequences: 0}}", "models.demo: max_sequences=0: must be at least 1"),
        ("models: {demo: {load: never}}", "models.demo: argument --load: invalid choice: 'never' (choose from"),
        ("models: {demo: {keep-alive: 5x}}", "models.demo: --keep-alive 5x: expected a duration such as 30s, 5m"),
        ("models: {}", "models: expected at least one"),
        (
            "models: {demo: }\nmodel: {}",
            "expected one key, `models`, an object with an entry for each model id, and `pre",
        ),
        ("models: {demo: }\npresets: [a]", "and `presets`, if any, an object by name"),
        ("models: {demo: }\npresets: {a: {from: other}}", "presets.a: from: other: expected a model of this file: one"),
        ("models: {demo: }\npresets: {a: {from: demo, systm: x}}", "presets.a: systm: expected one of from, system, d"),
        ("models: {demo: }\npresets: {a: {from: demo, system: [x]}}", "presets.a: system: ['x']: expected a text"),
        ("models: {demo: }\npresets: {a: {from: demo, default: x}}", "presets.a: default: 'x': expected an object"),
        ("models: {demo: }\npresets: {a: {from: [demo]}}", "presets.a: from: ['demo']: expected a model of this file"),
        ("models: {demo: }\npresets: {a: demo}", "presets.a: expected an object with from, system, default"),
        ("models: {demo: }\npresets: {' a': {from: demo}}", "presets. a: preset ' a': printable characters, no space"),
        (
            "models: {demo: }\npresets: {a: {from: demo, default: {stop: []}}}",
            "presets.a: default stop=[]: must be a text, or a list of at most 16 texts, none of them empty",
        ),
    ],
)
def test_a_mistake_in_the_file_of_models_is_named(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conch.yaml").write_text(text)
    assert main(["build", str(tmp_path / "conch.yaml"), "--home", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path}/conch.yaml: ") and message in error


def test_artifacts_are_verified_together(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        assert main(["build", name, "--checkpoint", str(checkpoint), "--home", str(tmp_path)]) == 0
    folders = sorted(str(path) for path in (tmp_path / "artifacts").iterdir() if path.is_dir())
    assert main(["verify", *folders]) == 0
    (tmp_path / "artifacts" / folders[0] / "tokenizer" / "tokenizer.json").unlink()
    capsys.readouterr()
    assert main(["verify", *folders]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"error: {folders[0]}: 1 of its checks failed\n"
    assert captured.out.count("ok      digests of") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["build", "tiny"],
            "tiny: not in the catalog; `conch list --all` shows its models (a MODEL may also be OWNER/",
        ),
        (["build", "x.gguf"], "x.gguf: no such file or directory\n"),
        (["build", "demo", "tiny", "--alias", "x"], "--alias: goes with one MODEL, not 2\n"),
        (["build", "conch.yaml", "--alias", "x"], "--alias: goes with one MODEL: write it into conch.yaml\n"),
        (
            ["build", "llama3.1:8b", "gemma2:9b", "--runtime", "tensorrt_llm"],
            "llama3.1:8b and gemma2:9b: the runtime tensorrt_llm builds one MODEL at a time; `conch render ",
        ),
        (
            ["build", "0", "--runtime", "tensorrt_llm", "--dry-run", "--gpu", "h100"],
            "0: not in the catalog; `conch list --all` shows its models (a MODEL may also be OWNER/NAME of the hub, ",
        ),
        (
            ["build", "0", "--runtime", "tensorrt_llm", "--checkpoint", "none"],
            "--checkpoint none: no such folder, nor of the form OWNER/NAME@REVISION",
        ),
        (["build", "My Model.gguf"], "model id 'My Model': letters, digits"),
        (["build", "demo", "demo"], "model demo: named twice\n"),
        (["build", ""], "an empty text as MODEL"),
        (["build", "demo", "--context-window", "1"], "--context-window 1: expected at least 2\n"),
        (["build", "a/b", "--adapter", "x=none"], "--adapter none: no such file or folder\n"),
        (["build", "a/b/c"], "a/b/c: no such folder, nor OWNER/NAME of the hub\n"),
        (["build", "demo", "--default", "chat_max_tokens=all"], 'default chat_max_tokens="all": must be a whole'),
        (["build", "a__b", "--checkpoint", "org/model@main"], "model id 'a__b': letters, digits"),
        (["build", "tiny", "--checkpoint", "none"], "--checkpoint none: no such folder, nor of the form"),
        (["build", "tiny", "--gguf", "x.gguf"], "--gguf x.gguf: no such file, nor of the form OWNER/NAME:VARIANT"),
        (["build", "x", "--gguf", "a", "--checkpoint", "b"], "--gguf: not together with --checkpoint"),
        (["build", "x", "--gguf", "org/model:Q8_0", "--option", "itl_ms=5"], "--option itl_ms: the runtime"),
        (["build", "demo", "--option", "contexts=0"], "--option contexts=0: expected a whole number from 1"),
        (["build", "demo", "--runtime", "synthetic", "--option", "itl_ms=x"], "--option itl_ms=x: expected a n"),
        (["build", "demo", "--option", "=5"], "--option =5: expected NAME=VALUE"),
        (["build", "demo", "--option", "a=1", "--option", "a=2"], "--option a: given twice"),
        (["build", "demo", "--alias", "demo"], "alias 'demo' of demo: model demo has the same name"),
        (["build", "demo", "--default", "chat_max_tokens=all"], 'default chat_max_tokens="all": must be a whole'),
        (["build", "demo", "--max-sequences", "0"], "max_sequences=0: must be at least 1"),
        (
            ["build", "demo", "--runtime", "synthetic", "--speculative", "ngram"],
            "--speculative ngram: the runtime synthetic has no such speculation",
        ),
        (["render", "none:0,1", "--repository", "r"], "none: not an artifact, manifest.json is missing"),
        (["render", "a", "b", "--alias", "x", "--repository", "r"], "--alias x: goes with one artifact"),
        (["render", "a", "b", "--name", "x", "--repository", "r"], "--name x: goes with one artifact"),
        (["build", "demo", "demo-embedder", "--link", "x"], "--link: goes with one MODEL, not 2"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "a folder with neither a checkpoint (config.json) nor a GGUF file"),
        ("m.gguf.part1of2", "a part of a GGUF file: join all parts in order first, with cat PARTS > FILE.gguf"),
        ("Modelfile", "a Modelfile of Ollama: `conch create NAME -f FILE` makes a preset of it"),
        ("notes.txt", "expected a folder, FILE.gguf or FILE.yaml"),
    ],
)
def test_a_path_that_is_no_model_is_refused_by_what_it_is(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    if name != "folder":
        (tmp_path / name).touch()
    with pytest.raises(BuildError) as refusal:
        find_source(str(tmp_path / name), None, Digests(tmp_path))
    assert str(refusal.value).startswith(f"{tmp_path / name}: {message}")


def test_a_state_dir_that_cannot_be_written_is_a_line_too(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    arguments = ["build", "tiny", "--checkpoint", str(checkpoint), "--home", str(tmp_path / "file")]
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("arguments", [[], ["serve"], ["build", "demo", "--runtime", "magic"]])
def test_a_wrong_command_line_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and line.endswith(" (--help lists the options)")


def test_an_interrupt_during_the_imports_leaves_no_traceback(tmp_path: Path) -> None:
    # A test run in the background of a script has the signal ignored.
    interrupt = "from signal import *; signal(SIGINT, default_int_handler); raise_signal(SIGINT)"
    (tmp_path / "pydantic.py").write_text(interrupt)
    command = [sys.executable, "-m", "build_engines", "list"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_fingerprint_holds_the_build_of_llama_cpp(checkpoint: Path, tmp_path: Path, monkeypatch) -> None:
    """Builds for graphics cards are packages of other names: the fingerprint lacked their version."""
    arguments = ["build", "tiny", "--runtime", "synthetic", "--checkpoint", str(checkpoint), "--home", str(tmp_path)]
    fingerprints = []
    for package in ("cyllama", "cyllama-vulkan"):
        (tmp_path / package).mkdir()
        install_build(tmp_path / package, package, monkeypatch)
        assert main(arguments) == 0
        fingerprints.append(read_ensemble(tmp_path / "repository", "tiny").fingerprint)
    assert fingerprints[0] != fingerprints[1]


def test_two_builds_of_llama_cpp_end_a_build_before_a_download(tmp_path: Path, monkeypatch, capsys) -> None:
    install_build(tmp_path, "cyllama", monkeypatch)
    install_build(tmp_path, "cyllama-vulkan", monkeypatch)
    assert main(["build", "org/model", "--home", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: cyllama and cyllama-vulkan are installed, and share the folder cyllama: ")
