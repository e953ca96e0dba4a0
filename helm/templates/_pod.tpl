{{- /* What every pod has. Takes root. */ -}}
{{- define "conch.pod.common" -}}
serviceAccountName: {{ include "conch.serviceAccountName" .root | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* Where it runs. Takes of: the frontend's values, or a model; a model's profile counts too. */ -}}
{{- define "conch.pod.placement" -}}
{{- $profile := .of.profile | default dict -}}
{{- $nodeSelector := merge (dict) .of.nodeSelector ($profile.nodeSelector | default dict) -}}
{{- with $profile.gpuProduct }}{{ $nodeSelector = merge $nodeSelector (dict "nvidia.com/gpu.product" .) }}{{ end -}}
{{- with $nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat ($profile.tolerations | default list) .of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.runtimeClassName | default $profile.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- /* The folders that a read-only root file system needs, and the environment that names them. */ -}}
{{- define "conch.writable.env" -}}
- name: HOME
  value: /home/conch
- name: XDG_CACHE_HOME
  value: /home/conch/.cache
- name: PYTHONDONTWRITEBYTECODE
  value: "1"
{{- end -}}

{{- define "conch.writable.mounts" -}}
- name: home
  mountPath: /home/conch
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- define "conch.writable.volumes" -}}
- name: home
  emptyDir: {}
- name: tmp
  emptyDir: {}
{{- end -}}

{{- /* Until when a pod that ends is killed: the pause, the streams, and a margin for what follows. Takes drain. */ -}}
{{- define "conch.gracePeriod" -}}
{{ add (int .preStopSeconds) (int .maxStreamSeconds) 15 }}
{{- end -}}

{{- /* For as long as the cluster needs to forget a pod's address, it goes on as before. Takes drain. */ -}}
{{- define "conch.preStop" -}}
preStop:
  exec:
    command: ["sleep", {{ .preStopSeconds | int | quote }}]
{{- end -}}
