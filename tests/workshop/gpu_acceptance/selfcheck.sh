#!/bin/bash
# From the bare GPU image to a report: the acceptance kit with the demo model, on both backends of TensorRT-LLM.
#
#   docker run --rm --gpus all --shm-size=2g --user "$(id -u)" -e HOME=/tmp -v "$PWD:/report" IMAGE selfcheck [OPTION...]
#
# Options are those of the kit. The archives in the mounted folder are for its readers.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.." || exit
status=0
for backend in engine pytorch; do
    examples=()
    [[ $backend == pytorch ]] || examples=(--tensorrt-llm-examples /opt/TensorRT-LLM)
    python3 -m tests.workshop.gpu_acceptance --backend "$backend" "${examples[@]}" --home "/tmp/selfcheck-$backend" \
        --report "${REPORT_DIR:-/report}/selfcheck-$backend" "$@" || status=1
done
exit "$status"
