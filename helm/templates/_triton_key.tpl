{{- /* Secret with Triton's key, shared by the frontend and the models' pods. */ -}}
{{- define "conch.tritonKey.name" -}}
{{ .Values.tritonKey.existingSecret | default (include "conch.name" (dict "root" . "suffix" "triton-key")) }}
{{- end -}}

{{- define "conch.tritonKey.env" -}}
- name: CONCH_TRITON_KEY
  valueFrom:
    secretKeyRef:
      name: {{ include "conch.tritonKey.name" . | quote }}
      key: {{ .Values.tritonKey.key | quote }}
{{- end -}}
