#!/bin/bash
# Runs a command as a container would: as the user that the chart names, in a read-only root file system with the given
# folders in their places, in the network namespace of the caller. Its environment is what ENV_FILE has, one to a line.
#
#   ROOT=DIR ENV_FILE=FILE HOSTS=FILE NSSWITCH=FILE READABLE="DIR ..." VOLUMES="FROM:TO ..." SHM=SIZE run_container.sh USER COMMAND...
set -euo pipefail
user=$1
shift

mount -t tmpfs -o mode=755 tmpfs "$ROOT"
for name in bin sbin lib lib64 usr etc proc dev; do
    [[ -e /$name ]] || continue
    mkdir "$ROOT/$name"
    mount --rbind "/$name" "$ROOT/$name"
done
mount --bind "$HOSTS" "$ROOT/etc/hosts"
mount --bind "$NSSWITCH" "$ROOT/etc/nsswitch.conf"
mount -t tmpfs -o "size=$SHM,mode=1777" tmpfs "$ROOT/dev/shm"
for volume in $VOLUMES; do
    mkdir -p "$ROOT${volume#*:}"
    mount --bind "${volume%%:*}" "$ROOT${volume#*:}"
done
for folder in $READABLE; do
    mkdir -p "$ROOT$folder"
    mount --bind "$folder" "$ROOT$folder"
    mount -o remount,bind,ro "$ROOT$folder"
done
mount -o remount,ro "$ROOT"
mapfile -t environment <"$ENV_FILE"
exec chroot "$ROOT" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all \
    env -i "${environment[@]}" "$@"
