{{- /* Fields of every pod. Takes root. */ -}}
{{- define "conch.pod.common" -}}
serviceAccountName: {{ include "conch.serviceAccountName" .root | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name | quote }}{{ else }}{{ . | quote }}{{ end }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* A pod's spec, with the values of podSpec in it. Takes spec, a text, and of: the frontend's values, or a model. */ -}}
{{- define "conch.pod.spec" -}}
{{- toYaml (mergeOverwrite (.spec | fromYaml) (deepCopy .of.podSpec)) -}}
{{- end -}}

{{- /* The items of a list; nothing for an empty one. */ -}}
{{- define "conch.list" -}}
{{- with . -}}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{- /* Variables of a container from ConfigMaps and Secrets. Takes the frontend's values, or a model. */ -}}
{{- define "conch.envFrom" -}}
{{- with .extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Placement of a pod. Takes of: the frontend's values, or a model with its profile. */ -}}
{{- define "conch.pod.placement" -}}
{{- $profile := .of.profile | default dict -}}
{{- $nodeSelector := merge (dict) .of.nodeSelector ($profile.nodeSelector | default dict) -}}
{{- with $profile.gpuProduct }}{{ $nodeSelector = merge $nodeSelector (dict "nvidia.com/gpu.product" .) }}{{ end -}}
{{- with $nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := concat ($profile.tolerations | default list) .of.tolerations -}}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $isGiven := false -}}
{{- range $tolerations }}{{ if and (eq (.key | default $key) $key) (eq (.effect | default "NoExecute") "NoExecute") }}{{ $isGiven = true }}{{ end }}{{ end -}}
{{- if not $isGiven -}}
{{- $tolerations = append $tolerations (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" (int $.of.lostNodeSeconds)) -}}
{{- end -}}
{{- end }}
tolerations:
  {{- toYaml $tolerations | nindent 2 }}
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

{{- /* Environment for the writable folders beside a read-only root file system. */ -}}
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

{{- /* Takes the size of each: a pod that writes more is evicted. */ -}}
{{- define "conch.writable.volumes" -}}
- name: home
  emptyDir: {sizeLimit: {{ . }}}
- name: tmp
  emptyDir: {sizeLimit: {{ . }}}
{{- end -}}

{{- /* Seconds until a terminating pod is killed: the pause, the streams, and the end itself. Takes drain and endSeconds. */ -}}
{{- define "conch.gracePeriod" -}}
{{ add (int .drain.preStopSeconds) (int .drain.maxStreamSeconds) .endSeconds }}
{{- end -}}

{{- /* Keeps a terminating pod serving while the cluster removes its address. Takes drain. */ -}}
{{- define "conch.preStop" -}}
preStop:
  exec:
    command: ["sleep", {{ .preStopSeconds | int | quote }}]
{{- end -}}
