#!/bin/bash
# Starts the ranks of a model that spans several nodes, without kubectl and without rights in the cluster.
#
#   start-ranks.sh COMMAND...
#
# Every pod of a LeaderWorkerSet runs this. A worker runs an SSH server until it is ended. The leader waits until it
# reaches every worker, then has mpirun start the ranks on all of them: COMMAND runs on rank 0, the others work for it.
# When a rank dies, mpirun ends, and so does the leader: the controller then recreates the group.
#
# LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX come from the controller; CONCH_NUM_RANKS, CONCH_RANKS_PER_NODE,
# CONCH_START_TIMEOUT_S and CONCH_FORWARDED (names of further variables that all ranks get) from the chart.
set -euo pipefail

ssh_port=${CONCH_SSH_PORT:-2222}
key_file=${CONCH_SSH_KEY:-/etc/conch/ssh/ssh-privatekey}
folder=$(mktemp -d "${TMPDIR:-/tmp}/ranks.XXXXXX")

fail() {
    echo "error: $*" >&2
    exit 1
}

# Ours is the only key there is: hosts and client prove with it that they are of the same release.
prepare_keys() {
    [[ -r $key_file ]] || fail "$key_file: cannot be read: multinode.sshKeySecret must have the key ssh-privatekey"
    install -m 600 "$key_file" "$folder/key"
    local public
    public=$(ssh-keygen -y -f "$folder/key" </dev/null) || fail "$key_file: not a private SSH key without a passphrase"
    echo "$public" >"$folder/authorized_keys"
    echo "* $public" >"$folder/known_hosts"
}

run_worker() {
    cat >"$folder/sshd_config" <<END
Port $ssh_port
ListenAddress ${CONCH_SSH_ADDRESS:-0.0.0.0}
HostKey $folder/key
AuthorizedKeysFile $folder/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
X11Forwarding no
AllowTcpForwarding no
END
    echo "worker $LWS_WORKER_INDEX waits for the leader $LWS_LEADER_ADDRESS"
    exec "$(PATH=$PATH:/usr/sbin command -v sshd)" -D -e -f "$folder/sshd_config"
}

# The leader's name is GROUP.DOMAIN, a worker's GROUP-INDEX.DOMAIN.
group_hosts() {
    local index
    echo "$LWS_LEADER_ADDRESS"
    for ((index = 1; index < LWS_GROUP_SIZE; index++)); do
        echo "${LWS_LEADER_ADDRESS%%.*}-$index.${LWS_LEADER_ADDRESS#*.}"
    done
}

wait_for_workers() {
    local deadline=$((SECONDS + CONCH_START_TIMEOUT_S)) host missing
    while :; do
        missing=()
        for host in "${workers[@]}"; do
            ssh "${ssh_options[@]}" "$host" true 2>"$folder/ssh.log" </dev/null || missing+=("$host")
        done
        ((${#missing[@]})) || return 0
        ((SECONDS < deadline)) || fail "not reached within $CONCH_START_TIMEOUT_S s: ${missing[*]} ($(tail -n 1 \
            "$folder/ssh.log")); see whether their pods are scheduled: a group needs $LWS_GROUP_SIZE nodes"
        echo "waiting for ${missing[*]}"
        sleep 1
    done
}

run_leader() {
    local hosts host name forwarded=()
    mapfile -t hosts < <(group_hosts)
    workers=("${hosts[@]:1}")
    ((CONCH_NUM_RANKS == CONCH_RANKS_PER_NODE * ${#hosts[@]})) ||
        fail "$CONCH_NUM_RANKS ranks are not $CONCH_RANKS_PER_NODE on each of ${#hosts[@]} nodes"
    ssh_options=(-p "$ssh_port" -i "$folder/key" -o "UserKnownHostsFile=$folder/known_hosts" -o LogLevel=ERROR
        -o StrictHostKeyChecking=yes -o BatchMode=yes -o ConnectTimeout=5 -o ServerAliveInterval=10)
    wait_for_workers
    for host in "${hosts[@]}"; do
        echo "$host slots=$CONCH_RANKS_PER_NODE"
    done >"$folder/hosts"
    for name in PATH LD_LIBRARY_PATH PYTHONPATH HOME XDG_CACHE_HOME ${CONCH_FORWARDED:-}; do
        [[ -v $name ]] && forwarded+=(-x "$name")
    done
    echo "starting $CONCH_NUM_RANKS ranks on ${hosts[*]}"
    # By its whole path, so that it looks for its own programs in the same place on the other nodes.
    exec "$(command -v mpirun)" -np "$CONCH_NUM_RANKS" --hostfile "$folder/hosts" --map-by "ppr:$CONCH_RANKS_PER_NODE:node" \
        --mca plm_rsh_agent "ssh ${ssh_options[*]}" --mca orte_keep_fqdn_hostnames 1 \
        "${forwarded[@]}" trtllm-llmapi-launch "$@"
}

prepare_keys
if ((LWS_WORKER_INDEX)); then
    run_worker
fi
run_leader "$@"
