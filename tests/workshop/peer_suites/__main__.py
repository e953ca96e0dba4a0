"""Runs the tests that llama.cpp or vLLM has for Responses and Messages against a server that runs.

python -m tests.workshop.peer_suites URL CHECKOUT [OPTION OF PYTEST ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_LLAMA_CPP = "tools/server/tests"
_RESPONSES = "tests/entrypoints/openai/responses"
# The tests that send requests; the others import vLLM.
_VLLM = (
    *("basic", "simple", "function_call", "stateful", "structured_output", "namespace_tool_separator"),
    *("harmony", "parsable_context"),
)


def main(url: str, checkout: Path, *options: str) -> int:
    """Return pytest's exit code."""
    if (checkout / _LLAMA_CPP).exists():
        folder, files = checkout / _LLAMA_CPP, ["unit/test_compat_oai_responses.py", "unit/test_compat_anthropic.py"]
    else:
        files = [*(f"{_RESPONSES}/test_{name}.py" for name in _VLLM), "tests/entrypoints/anthropic/test_messages.py"]
        folder, options = checkout, (f"--confcutdir={_RESPONSES}", *options)  # the file above imports torch
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parent),
        "PEER_SERVER_URL": url,
        "DEBUG_EXTERNAL": "1",  # llama.cpp's tests start no server
        "HTTPS_PROXY": "http://127.0.0.1:9",  # vLLM's tests have a tool that calls a service on the internet
    }
    command = [sys.executable, "-m", "pytest", "-p", "external_server", "-p", "no:cacheprovider", "-rfEsx"]
    return subprocess.run([*command, *options, *files], cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
