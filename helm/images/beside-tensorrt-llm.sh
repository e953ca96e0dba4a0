#!/bin/sh
# Installs Conch beside TensorRT-LLM, in NVIDIA's images: docs/gpu.md, step 3. Arguments are those of `pip install`.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Versions of the image are constraints. Exceptions, which are also the only new conflicts that may remain:
ours='llguidance|aiohttp'
python3 -m pip list --format=freeze | grep -v -E "^($ours)==" > "$work/image.txt"
python3 -m pip check > "$work/before.txt" || true
# The empty variable keeps the image's own constraints away from the tools that build the package.
PIP_CONSTRAINT='' python3 -m pip install --constraint "$work/image.txt" "$@" '.[tensorrt-llm,build,frontend,acceptance]'
if python3 -m pip check | grep -v -x -F -f "$work/before.txt" | grep -v -E " but you have ($ours) |No broken req"; then
    echo "error: Conch's packages conflict with the image's, as pip check says above" >&2
    exit 1
fi

# Every module is imported, and the acceptance kit. The kit's tests need pytest's plug-ins.
python3 -m pytest -q -p no:cacheprovider -W default tests/test_imports.py tests/workshop/gpu_acceptance/claims.py -k imported
python3 -m tests.workshop.gpu_acceptance --help > /dev/null
