{{- /* The spec of the frontend's own pods. Takes root. */ -}}
{{- define "conch.frontend.podSpec" -}}
{{- $frontend := .root.Values.frontend -}}
{{- include "conch.pod.common" . }}
{{- include "conch.pod.placement" (dict "of" $frontend) }}
{{- if $frontend.topologySpread }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "conch.frontend.selector" $.root | nindent 8 }}
  {{- end }}
{{- end }}
terminationGracePeriodSeconds: {{ include "conch.frontend.gracePeriod" .root }}
{{- with $frontend.extraInitContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - {{- include "conch.frontend.container" . | nindent 4 }}
  {{- include "conch.list" $frontend.extraContainers | nindent 2 }}
volumes:
  {{- include "conch.writable.volumes" "1Gi" | nindent 2 }}
  {{- include "conch.tritonTls.volumes" (dict "root" .root "isFrontend" true) | nindent 2 }}
  {{- include "conch.frontend.volumes" .root | nindent 2 }}
{{- end -}}

{{- define "conch.frontend.gracePeriod" -}}
{{ include "conch.gracePeriod" (dict "drain" .Values.frontend.drain "endSeconds" 15) }}
{{- end -}}

{{- /* The container with the frontend. Takes root, and model in the model's pod. */ -}}
{{- define "conch.frontend.container" -}}
{{- $frontend := .root.Values.frontend -}}
{{- $scheme := empty $frontend.tls.existingSecret | ternary "HTTP" "HTTPS" -}}
name: frontend
{{ include "conch.container.image" (dict "root" .root "image" .root.Values.images.frontend) }}
command: [python3, -m, frontend, api]
args:
  {{- include "conch.frontend.args" . | nindent 2 }}
env:
  {{- include "conch.writable.env" . | nindent 2 }}
  {{- include "conch.tritonKey.env" .root | nindent 2 }}
  {{- with $frontend.redis.existingSecret }}
  - name: CONCH_REDIS_URL
    valueFrom:
      secretKeyRef:
        name: {{ . | quote }}
        key: {{ $frontend.redis.key | quote }}
  {{- end }}
  {{- with $frontend.store.existingSecret }}
  - name: CONCH_STORE
    valueFrom:
      secretKeyRef:
        name: {{ . | quote }}
        key: {{ $frontend.store.key | quote }}
  {{- end }}
  {{- include "conch.list" $frontend.extraEnv | nindent 2 }}
{{- include "conch.envFrom" $frontend }}
ports:
  - name: api
    containerPort: 8000
  - name: operations
    containerPort: 9000
startupProbe:
  httpGet: {path: /health/live, port: operations, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /health/ready, port: operations, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
livenessProbe:
  httpGet: {path: /health/live, port: operations, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
lifecycle:
  {{- include "conch.preStop" $frontend.drain | nindent 2 }}
resources:
  {{- toYaml $frontend.resources | nindent 2 }}
securityContext:
  {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
volumeMounts:
  {{- include "conch.writable.mounts" . | nindent 2 }}
  {{- range $name, $secret := include "conch.frontend.secrets" .root | fromYaml }}
  - name: {{ $name }}
    mountPath: /etc/conch/{{ $name }}
    readOnly: true
  {{- end }}
  {{- include "conch.tritonTls.mounts" . | nindent 2 }}
  {{- include "conch.list" $frontend.extraVolumeMounts | nindent 2 }}
{{- end -}}

{{- /* The volumes of this container, beside those that every pod has. */ -}}
{{- define "conch.frontend.volumes" -}}
{{- range $name, $secret := include "conch.frontend.secrets" . | fromYaml }}
- name: {{ $name }}
  secret:
    secretName: {{ $secret | quote }}
    {{- if eq $name "keys" }}
    {{- $file := include "conch.apiKeys.file" $ }}
    items: [{key: {{ $file }}, path: {{ $file }}}]
    {{- end }}
{{- end }}
{{ include "conch.list" .Values.frontend.extraVolumes }}
{{- end -}}
