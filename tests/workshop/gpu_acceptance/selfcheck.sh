#!/bin/bash
# From the bare GPU image to a report: the acceptance kit, with all its steps.
#
#   docker run --rm --gpus all --shm-size=16g --ulimit memlock=-1 --user "$(id -u)" -e HOME=/tmp -v "$PWD:/report" IMAGE selfcheck [OPTION...]
#
# Options are those of the kit. The archive in the mounted folder is for its readers.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../../.." || exit
examples=()
[[ ! -d /opt/TensorRT-LLM ]] || examples=(--tensorrt-llm-examples /opt/TensorRT-LLM)
exec python3 -m tests.workshop.gpu_acceptance "${examples[@]}" --home "${STATE_DIR:-/tmp/selfcheck}" \
    --report "${REPORT_DIR:-/report}/selfcheck" "$@"
