{{- /* Environment of start-ranks.sh; empty for a model on one node. */ -}}
{{- define "conch.ranks.env" -}}
{{- if gt (int .model.numNodes) 1 }}
- name: CONCH_NUM_RANKS
  value: {{ .model.numGpus | int | quote }}
- name: CONCH_RANKS_PER_NODE
  value: {{ .model.gpus.perNode | int | quote }}
- name: CONCH_START_TIMEOUT_S
  value: {{ .root.Values.multinode.startTimeoutSeconds | int | quote }}
{{- range $name, $value := .root.Values.multinode.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /*
The container of a worker node, in which the leader starts ranks. On SIGTERM it closes its port, and stays until the leader
has ended the ranks; both have the same grace period. Liveness probes stop for a terminating pod.
*/ -}}
{{- define "conch.worker.container" -}}
{{- $image := include "conch.model.image" . | fromYaml -}}
name: ranks
{{ include "conch.container.image" (dict "root" .root "image" $image) }}
command:
  - /bin/bash
  - /etc/conch/scripts/start-ranks.sh
env:
  {{- include "conch.writable.env" . | nindent 2 }}
  {{- include "conch.ranks.env" . | nindent 2 }}
  {{- with .model.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- include "conch.envFrom" .model }}
ports:
  - name: ssh
    containerPort: 2222
readinessProbe:
  tcpSocket:
    port: ssh
  periodSeconds: 5
livenessProbe:
  tcpSocket:
    port: ssh
  initialDelaySeconds: 30
  periodSeconds: 20
resources:
  {{- include "conch.triton.resources" . | nindent 2 }}
securityContext:
  {{- include "conch.triton.securityContext" . | nindent 2 }}
volumeMounts:
  {{- include "conch.triton.mounts" . | nindent 2 }}
{{- end -}}
