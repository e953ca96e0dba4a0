"""`conch run NAME` on a machine with a GPU: nvidia-smi and TensorRT-LLM are doubles, the hub is on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import yaml

from tests.build_engines.stand_in_hub import Repository, stand_in_hub
from tests.build_engines.tensorrt_llm.builder import BIN, H100, ROOT
from tests.launching import FREE_PORTS
from tests.tensorrt_llm_artifact import DEMO, DEMO_CATALOG, DOUBLES
from tests.waiting import DEADLINE_S

ANSWER = "The capital of France is Paris."


def test_a_name_of_the_catalog_is_served_by_the_pytorch_backend_with_its_ready_checkpoint(tmp_path: Path) -> None:
    checkpoint = shutil.copytree(DEMO / "checkpoint", tmp_path / "checkpoint")
    (checkpoint / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    [entry] = yaml.safe_load(DEMO_CATALOG.read_text())["models"].values()
    entry |= {"precisions": ["bf16", "fp8"], "ready_checkpoints": {"fp8": "nvidia/tiny-FP8"}}
    (tmp_path / "catalog.yaml").write_text(yaml.safe_dump({"models": {"me/tiny": entry}}))
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"models": {"me/tiny": {"catalog": ["catalog.yaml"]}}}))
    python = environment(tmp_path / "image")
    hub = {"HF_HOME": str(tmp_path / "hub"), "CONCH_DOUBLE_GPUS": H100, "PATH": f"{BIN}:{os.environ['PATH']}"}
    words = ["run", str(tmp_path / "models.yaml"), "What is the capital of France?", "--default", "temperature=0"]
    with stand_in_hub({"nvidia/tiny-FP8": Repository(checkpoint)}) as endpoint:
        done = subprocess.run(
            [python, "-P", "-m", "frontend", *words, f"--home={tmp_path / 'home'}", *FREE_PORTS],
            env=os.environ | hub | {"HF_ENDPOINT": endpoint},
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
            check=False,
        )
    assert "backend     pytorch: nvidia/tiny-FP8@main, fp8" in done.stderr
    assert (done.returncode, done.stdout.strip()) == (0, ANSWER), done.stderr


def environment(folder: Path) -> Path:
    """Make an environment that has the doubles beside all that this one has, and return its Python."""
    venv.create(folder, symlinks=True)
    paths = [sysconfig.get_path("purelib"), ROOT, DOUBLES]
    [site] = folder.glob("lib/python*/site-packages")
    (site / "beside.pth").write_text("\n".join(map(str, paths)))
    return folder / "bin" / "python"
