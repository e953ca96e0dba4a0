{{- /* The pod of a model on one node, or of the leader. Takes root and model. */ -}}
{{- define "conch.model.pod" -}}
metadata:
  {{- include "conch.model.podMetadata" . | nindent 2 }}
spec:
  {{- include "conch.pod.spec" (dict "spec" (include "conch.model.podSpec" .) "of" .model) | nindent 2 }}
{{- end -}}

{{- define "conch.model.podSpec" -}}
{{- $grace := include "conch.gracePeriod" (dict "drain" .model.drain "endSeconds" 40) -}}
{{- $isWithFrontend := .root.Values.frontend.sidecar -}}
{{- include "conch.pod.common" . }}
{{- include "conch.pod.placement" (dict "of" .model) }}
terminationGracePeriodSeconds: {{ $isWithFrontend | ternary (max (int $grace) (include "conch.frontend.gracePeriod" .root | int)) $grace }}
initContainers:
  {{- include "conch.model.initContainers" . | nindent 2 }}
containers:
  - {{- include "conch.triton.container" . | nindent 4 }}
  {{- if $isWithFrontend }}
  - {{- include "conch.frontend.container" . | nindent 4 }}
  {{- end }}
  {{- include "conch.list" .model.extraContainers | nindent 2 }}
volumes:
  {{- include "conch.triton.volumes" . | nindent 2 }}
  {{- include "conch.tritonTls.volumes" . | nindent 2 }}
  {{- if $isWithFrontend }}
  {{- include "conch.frontend.volumes" .root | nindent 2 }}
  {{- end }}
  {{- if and .model.isBuilt .root.Values.huggingface.existingSecret }}
  - name: huggingface
    secret:
      secretName: {{ .root.Values.huggingface.existingSecret | quote }}
  {{- end }}
{{- end -}}

{{- /* The pod of a worker node. Takes root and model. */ -}}
{{- define "conch.worker.pod" -}}
metadata:
  {{- include "conch.model.podMetadata" . | nindent 2 }}
spec:
  {{- include "conch.pod.spec" (dict "spec" (include "conch.worker.podSpec" .) "of" .model) | nindent 2 }}
{{- end -}}

{{- define "conch.worker.podSpec" -}}
{{- include "conch.pod.common" . }}
{{- include "conch.pod.placement" (dict "of" .model) }}
terminationGracePeriodSeconds: {{ include "conch.gracePeriod" (dict "drain" .model.drain "endSeconds" 40) }}
containers:
  - {{- include "conch.worker.container" . | nindent 4 }}
volumes:
  {{- include "conch.triton.volumes" . | nindent 2 }}
{{- end -}}

{{- define "conch.model.podMetadata" -}}
labels:
  {{- include "conch.labels" (dict "root" .root "component" "model" "model" .model "labels" .model.podLabels) | nindent 2 }}
{{- $annotations := deepCopy .model.podAnnotations -}}
{{- if gt (int .model.numNodes) 1 -}}
{{- $_ := set $annotations "conch/scripts" (include "conch.scripts" .root | sha256sum) -}}
{{- end -}}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "conch.scripts" -}}
start-ranks.sh: |
  {{- .Files.Get "files/start-ranks.sh" | nindent 2 }}
{{- end -}}
