{{- /* The container with tritonserver. Takes root and model. */ -}}
{{- define "conch.triton.container" -}}
{{- $image := include "conch.model.image" . | fromYaml -}}
name: triton
{{ include "conch.container.image" (dict "root" .root "image" $image) }}
command:
  {{- if gt (int .model.numNodes) 1 }}
  - /bin/bash
  - /etc/conch/scripts/start-ranks.sh
  {{- end }}
  - python3
  - -m
  - frontend
  - triton
args:
  - --repository=/state/repository
  - --home=/state
  - --address=0.0.0.0  # for gRPC every address, of IPv6 too
  - --metrics-address=$(POD_IP)  # Triton's metrics listen in one family
  - --grpc-port=8001
  - --metrics-port=8002
  - --exit-timeout-s=30  # workers of several GPUs end, and free their memory
  {{- include "conch.tritonTls.serve" . | nindent 2 }}
env:
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  {{- include "conch.writable.env" . | nindent 2 }}
  {{- include "conch.tritonKey.env" .root | nindent 2 }}
  {{- include "conch.ranks.env" . | nindent 2 }}
  {{- with .model.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- include "conch.envFrom" .model }}
ports:
  - name: grpc
    containerPort: 8001
  - name: metrics
    containerPort: 8002
startupProbe:
  {{- include "conch.triton.health" (dict "root" .root "model" .model "timeout" .model.healthTimeoutSeconds "generates" true) | nindent 2 }}
  periodSeconds: 10
  {{- $waitSeconds := gt (int .model.numNodes) 1 | ternary (int .root.Values.multinode.startTimeoutSeconds) 0 }}
  failureThreshold: {{ add 1 (div (add (int .model.loadTimeoutSeconds) $waitSeconds) 10) }}
readinessProbe:
  {{- include "conch.triton.health" (dict "root" .root "model" .model "timeout" .model.healthTimeoutSeconds "generates" true) | nindent 2 }}
  periodSeconds: 15
  failureThreshold: 3
livenessProbe:
  {{- include "conch.triton.health" (dict "root" .root "model" .model "timeout" 10 "generates" false) | nindent 2 }}
  periodSeconds: 20
  failureThreshold: 4
lifecycle:
  preStop:  # the whole drain, since Triton breaks running requests on SIGTERM
    exec:
      command:
        - python3
        - -m
        - frontend
        - drain
        - --triton=127.0.0.1:8001
        - --notice-s={{ int .model.drain.preStopSeconds }}
        - --timeout-s={{ add (int .model.drain.preStopSeconds) (int .model.drain.maxStreamSeconds) }}
        - --hand-over
        {{- include "conch.tritonTls.connect" . | nindent 8 }}
resources:
  {{- include "conch.triton.resources" . | nindent 2 }}
securityContext:
  {{- include "conch.triton.securityContext" . | nindent 2 }}
volumeMounts:
  {{- include "conch.triton.mounts" . | nindent 2 }}
  {{- include "conch.tritonTls.mounts" . | nindent 2 }}
{{- end -}}

{{- /* The health check. Its own timeout is shorter than the cluster's. Takes root, model, timeout, generates. */ -}}
{{- define "conch.triton.health" -}}
exec:
  command:
    - python3
    - -m
    - frontend
    - health
    - --triton=127.0.0.1:8001
    - --timeout-s={{ int .timeout }}
    {{- include "conch.tritonTls.connect" . | nindent 4 }}
    {{- if .generates }}
    - --generate
    {{- end }}
timeoutSeconds: {{ add 10 (int .timeout) }}
{{- end -}}

{{- define "conch.triton.resources" -}}
{{- $resources := deepCopy .model.resources -}}
{{- if gt (int .model.numNodes) 1 -}}
{{- with .root.Values.multinode.rdmaResources -}}
{{- $resources = mergeOverwrite $resources (dict "limits" . "requests" .) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "conch.triton.securityContext" -}}
{{- $context := deepCopy .root.Values.containerSecurityContext -}}
{{- if and (gt (int .model.numNodes) 1) .root.Values.multinode.ipcLock -}}
{{- $context = mergeOverwrite $context (dict "capabilities" (dict "add" (list "IPC_LOCK"))) -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- define "conch.triton.mounts" -}}
{{- include "conch.writable.mounts" . }}
- name: shared-memory
  mountPath: /dev/shm
{{ include "conch.model.mounts" . }}
{{- if gt (int .model.numNodes) 1 }}
- name: scripts
  mountPath: /etc/conch/scripts
  readOnly: true
- name: ssh
  mountPath: /etc/conch/ssh
  readOnly: true
{{- end }}
{{- end -}}

{{- /* Mounts of a model's artifact and repository. */ -}}
{{- define "conch.model.mounts" -}}
- name: state
  mountPath: /state
{{- if .model.isBuilt }}
- name: models
  mountPath: /models
  readOnly: {{ not .writesCache }}
{{- end }}
{{- if .model.source.existingClaim }}
- name: source
  mountPath: /source
  readOnly: true
{{- end }}
{{- with .model.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "conch.model.volumes" -}}
{{- include "conch.writable.volumes" .model.scratchSize }}
- name: state
  emptyDir:
    sizeLimit: {{ .model.stateSize }}
{{- if .model.isBuilt }}
- name: models
  {{- if eq .root.Values.cache.type "hostPath" }}
  hostPath:
    path: {{ .root.Values.cache.hostPath | quote }}
    type: Directory  # the cluster would create a folder that only root can write
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ include "conch.cache.claim" .root | quote }}
  {{- end }}
{{- end }}
{{- with .model.source.existingClaim }}
- name: source
  persistentVolumeClaim:
    claimName: {{ . | quote }}
    readOnly: true
{{- end }}
{{- with .model.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "conch.triton.volumes" -}}
{{- include "conch.model.volumes" . }}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .model.shmSize }}
{{- if gt (int .model.numNodes) 1 }}
- name: scripts
  configMap:
    name: {{ include "conch.scripts.name" .root }}
- name: ssh
  secret:
    secretName: {{ .root.Values.multinode.sshKeySecret | quote }}
{{- end }}
{{- end -}}
