#!/bin/bash
# Starts the ranks of a model that spans several nodes, without kubectl and without rights in the cluster.
#
#   start-ranks.sh COMMAND...
#
# Every pod of a LeaderWorkerSet runs this as process 1. A worker runs an SSH server; after SIGTERM it stays until its
# ranks have ended, since the leader drains meanwhile. The leader waits until it reaches every worker, then mpirun starts
# the ranks on all pods: COMMAND runs on rank 0, the other ranks work for it. When a rank dies, mpirun and the leader
# end, and the controller recreates the group. Under trtllm-llmapi-launch, mpirun outlives a COMMAND that dies: then the
# liveness probe of the leader ends its pod.
#
# The controller sets LWS_LEADER_ADDRESS, LWS_GROUP_SIZE and LWS_WORKER_INDEX. The chart sets CONCH_NUM_RANKS,
# CONCH_RANKS_PER_NODE and CONCH_START_TIMEOUT_S.
set -euo pipefail
trap 'exit 143' TERM # process 1 ignores signals without a handler

ssh_port=${CONCH_SSH_PORT:-2222}
alive_s=${CONCH_SSH_ALIVE_S:-10} # a peer is lost after three missed answers
key_file=${CONCH_SSH_KEY:-/etc/conch/ssh/ssh-privatekey}
folder=$(mktemp -d "${TMPDIR:-/tmp}/ranks.XXXXXX")

fail() {
    echo "error: $*" >&2
    exit 1
}

# One key serves hosts and clients, and proves that both belong to this release.
prepare_keys() {
    [[ -r $key_file ]] || fail "$key_file: cannot be read: multinode.sshKeySecret must have the key ssh-privatekey"
    install -m 600 "$key_file" "$folder/key"
    local public
    public=$(ssh-keygen -y -f "$folder/key" </dev/null) || fail "$key_file: not a private SSH key without a passphrase"
    echo "$public" >"$folder/authorized_keys"
    echo "* $public" >"$folder/known_hosts"
}

run_worker() {
    # SSH does not pass the environment of the pod on to ranks. A higher LogLevel would log each probe.
    export -p >"$folder/environment"
    cat >"$folder/sshd_config" <<END
Port $ssh_port
${CONCH_SSH_ADDRESS:+ListenAddress $CONCH_SSH_ADDRESS}
HostKey $folder/key
AuthorizedKeysFile $folder/authorized_keys
ForceCommand /bin/bash -c '. $folder/environment; eval "\$SSH_ORIGINAL_COMMAND"'
ClientAliveInterval $alive_s
LogLevel FATAL
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
X11Forwarding no
AllowTcpForwarding no
END
    local sshd
    sshd=$(PATH=$PATH:/usr/sbin command -v sshd) || fail "there is no sshd in this image"
    "$sshd" -D -e -f "$folder/sshd_config" &
    server=$!
    trap end_with_ranks TERM
    echo "worker $LWS_WORKER_INDEX waits for the leader $LWS_LEADER_ADDRESS"
    wait "$server"
}

# Each connection of the leader is a child process of the server. Without the server no new ones begin.
end_with_ranks() {
    local status connections
    connections=$(grep -lsx "PPid:[[:space:]]$server" /proc/[0-9]*/status) || true
    kill "$server"
    for status in $connections; do
        echo "worker $LWS_WORKER_INDEX received SIGTERM and waits for the end of its ranks"
        while [[ -e $status ]]; do sleep 1; done
    done
    exit 0
}

# The leader is GROUP.DOMAIN, a worker GROUP-INDEX.DOMAIN.
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
            "$folder/ssh.log")); check whether their pods are scheduled: a group needs $LWS_GROUP_SIZE nodes"
        echo "waiting for ${missing[*]}"
        sleep 1
    done
}

run_leader() {
    local hosts host
    mapfile -t hosts < <(group_hosts)
    workers=("${hosts[@]:1}")
    ((CONCH_NUM_RANKS == CONCH_RANKS_PER_NODE * ${#hosts[@]})) ||
        fail "$CONCH_NUM_RANKS ranks are not $CONCH_RANKS_PER_NODE on each of ${#hosts[@]} nodes"
    ssh_options=(-p "$ssh_port" -i "$folder/key" -o "UserKnownHostsFile=$folder/known_hosts" -o LogLevel=ERROR
        -o StrictHostKeyChecking=yes -o BatchMode=yes -o ConnectTimeout=5 -o "ServerAliveInterval=$alive_s")
    wait_for_workers
    for host in "${hosts[@]}"; do
        echo "$host slots=$CONCH_RANKS_PER_NODE"
    done >"$folder/hosts"
    echo "starting $CONCH_NUM_RANKS ranks on ${hosts[*]}"
    # Open MPI 5 reads these names in place of the --mca below, which version 4 reads.
    export PRTE_MCA_plm_ssh_agent="ssh ${ssh_options[*]}" PRTE_MCA_prte_keep_fqdn_hostnames=1
    # With its whole path mpirun finds its own programs in the same place on the other nodes.
    exec "$(command -v mpirun)" -np "$CONCH_NUM_RANKS" --hostfile "$folder/hosts" --map-by "ppr:$CONCH_RANKS_PER_NODE:node" \
        --bind-to none --mca plm_rsh_agent "ssh ${ssh_options[*]}" --mca orte_keep_fqdn_hostnames 1 \
        trtllm-llmapi-launch "$@"
}

prepare_keys
if ((LWS_WORKER_INDEX)); then
    run_worker
else
    run_leader "$@"
fi
