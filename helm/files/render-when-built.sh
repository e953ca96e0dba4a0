#!/bin/sh
# Waits for the artifact of a Job, and renders its repository.
#
#   render-when-built.sh FOLDER SECONDS OPTION...
#
# FOLDER is the --state-dir of the Job, where only complete artifacts appear. The options are those of
# `python3 -m build_engines render`.
set -eu
trap 'exit 143' TERM # process 1 ignores signals without a handler; the Job may wait for the GPUs of this pod
folder=$1
timeout_s=$2
shift 2

echo "waiting for an artifact in $folder, at most $timeout_s s"
started=$(date +%s)
while :; do
    for manifest in "$folder"/artifacts/*/manifest.json; do
        if [ -f "$manifest" ]; then
            exec python3 -m build_engines render "$(dirname "$manifest")" "$@"
        fi
    done
    if [ $(($(date +%s) - started)) -ge "$timeout_s" ]; then
        echo "error: no artifact in $folder after $timeout_s s: check whether its Job has failed" \
            "(kubectl get jobs; kubectl logs job/...); build.waitSeconds limits the wait" >&2
        exit 1
    fi
    sleep 2
done
