"""`pull`: models into the store."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from build_engines.__main__ import main
from build_engines.lock import lock_path, locked
from tests.launching import running
from tests.waiting import wait_until


def test_pull_makes_the_artifact_of_build_and_no_repository(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tiny", "--checkpoint", str(checkpoint), "--context-window", "99", "--home", str(tmp_path)]
    assert main(["pull", *words]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert not (tmp_path / "repository").exists()
    assert main(["build", *words]) == 0
    assert capsys.readouterr().out.splitlines()[0] == line


def test_a_file_may_have_keywords_of_tensorrt_llm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.yaml").write_text("models: {demo: {llm-option: [enable_attention_dp=true]}}")
    assert main(["pull", str(tmp_path / "models.yaml"), "--home", str(tmp_path)]) == 1
    assert "--llm-option enable_attention_dp: the runtime llama_cpp has no such" in capsys.readouterr().err


def test_an_option_of_the_repository_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pull", "demo", "--max-sequences", "3"])
    assert capsys.readouterr().err.startswith("error: --max-sequences: no such option of pull")


def test_processes_that_build_one_model_wait_for_each_other_and_build_it_once(checkpoint: Path, tmp_path: Path) -> None:
    words = ["pull", "tiny", "--runtime", "synthetic", "--checkpoint", str(checkpoint), "--home"]
    assert main([*words, str(tmp_path / "other")]) == 0
    [built] = (tmp_path / "other").glob("artifacts/tiny-*/")
    artifact = tmp_path / "home" / "artifacts" / built.name
    command = [sys.executable, "-P", "-m", "build_engines", *words, str(tmp_path / "home")]
    with ExitStack() as stack:
        with locked(lock_path(artifact), "builds it too"):
            builders = [
                stack.enter_context(running(tmp_path, "pull", args=command, cwd=folder))
                for folder in (checkpoint, built)
            ]
            for builder in builders:
                builder.wait_for(f"waiting for process {os.getpid()} on ")
            assert not artifact.exists()
        wait_until(lambda: any(builder.process.poll() is not None for builder in builders), "one has built it")
        inode = artifact.stat().st_ino
        assert [builder.status() for builder in builders] == [0, 0]
    assert artifact.stat().st_ino == inode
    assert [builder.log.splitlines()[-1] for builder in builders] == [f"artifact    {artifact}"] * 2
