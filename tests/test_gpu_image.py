"""Both GPU images, as far as a machine without a GPU shows them: Conch beside the packages of TensorRT-LLM's image."""

from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.another_machine import cgroup_of_version_2, needs_root
from tests.build_engines.tensorrt_llm.builder import H100, write_examples
from tests.gpu_image import RELEASES, GpuImage, gpu_image
from tests.launching import running
from tests.waiting import DEADLINE_S

# A user without a name, as of docker's --user, who cannot write into the image; a host with the name of a pod.
_SCRIPT = """
mount --bind /dev/null /etc/passwd
mount --bind /dev/null /etc/nsswitch.conf  # systemd would name root
mount --bind --options ro "$1" "$1"
hostname conch-llama3-3-70b-6c9d5b7f4d-x2x7q
shift
exec "$@"
"""
ELSEWHERE = ("unshare", "--mount", "--uts", "sh", "-ec", _SCRIPT, "sh")  # and the image's folder


@pytest.fixture(scope="module", params=RELEASES)
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, servers: None) -> GpuImage:
    return gpu_image(tmp_path_factory.mktemp("image"), request.param)


def test_the_packages_of_tensorrt_llm_stay_but_for_two(image: GpuImage) -> None:
    """llguidance 0.7.29 has no grammars of ours, and aiohttp 3.13 has no `web.RequestKey`: `serve` ended with it."""
    command = image.command("python3", "-m", "pip", "list", "--format=freeze")
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    after: dict[str, str] = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    assert {name for name, version in image.packages.items() if after[name] != version} == {"aiohttp", "llguidance"}


def test_the_frontend_serves(image: GpuImage, tmp_path: Path) -> None:
    command = image.command("python3", "-m", "frontend", "api", "--port=0", "--triton=127.0.0.1:1")
    with running(tmp_path, "api", args=command, cwd=tmp_path) as api:
        api.wait_for("listens on")
        with urllib.request.urlopen(f"{api.url}/health/live", timeout=DEADLINE_S) as answer:
            assert answer.status == 200


@needs_root()
def test_selfcheck_runs_as_a_user_without_a_name_on_a_host_with_a_long_one(image: GpuImage, tmp_path: Path) -> None:
    limit = cgroup_of_version_2(
        tmp_path, "/pod", memory_max="3000000000", memory_current="0", memory_stat="inactive_file 0\nactive_file 0\n"
    )
    (image.root / "bin" / "tritonserver").touch(0o755)
    command = image.command(
        "selfcheck",
        "--only=image",
        f"--tensorrt-llm-examples={write_examples(tmp_path / 'examples')}",
        REPORT_DIR=str(tmp_path / "report"),
        STATE_DIR=str(tmp_path / "report" / "state"),
        CONCH_DOUBLE_GPUS=H100,
    )
    words = [*ELSEWHERE, str(image.root), *limit, *command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    page = tmp_path / "report" / "selfcheck" / "report.md"
    assert page.is_file(), done.stdout + done.stderr
    assert done.returncode == 0, page.read_text(encoding="utf-8")
    assert "3.0 GB of free RAM" in page.read_text(encoding="utf-8")
