"""The runtime against the recorded interface of the first release line without engines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("servers")

CONTRACT = "tensorrt_llm_contract_1.3.0rc29.json"


def test_the_pytorch_backend_works_with_a_later_release() -> None:
    folder = Path(__file__).parent
    ignored = [f"--ignore={__file__}", f"--ignore={folder / 'test_mpi.py'}"]  # MPI knows no release
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not engine_backend", *ignored, folder],
        env=os.environ | {"TENSORRT_LLM_CONTRACT": CONTRACT, "PYTEST_ADDOPTS": ""},
        cwd=folder.parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None and int(found[1]) > 100
    assert "skipped" not in done.stdout
