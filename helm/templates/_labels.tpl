{{- /* Labels that select pods; they do not depend on version or values. Takes root, component, and model if there is one. */ -}}
{{- define "conch.selector" -}}
app.kubernetes.io/name: {{ .root.Values.nameOverride | default "conch" | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
conch/model: {{ .name | quote }}
{{- end }}
{{- end -}}

{{- /* Labels of objects and pods. Takes the arguments of conch.selector, and optionally labels. */ -}}
{{- define "conch.labels" -}}
{{ include "conch.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* name, labels and annotations of an object. Takes those of conch.labels, name, and optionally annotations. */ -}}
{{- define "conch.metadata" -}}
name: {{ .name | quote }}
labels:
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  {{- $labels := merge (dict) (.labels | default dict) .root.Values.commonLabels }}
  {{- include "conch.labels" (merge (dict "labels" $labels) .) | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
