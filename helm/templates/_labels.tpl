{{- /* What selects pods; none of it changes with a version or a value. Takes root, component and, of a model, model. */ -}}
{{- define "conch.selector" -}}
app.kubernetes.io/name: conch
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
conch/model: {{ .name | quote }}
{{- end }}
{{- end -}}

{{- /* Of objects and pods; takes the same, and perhaps labels. */ -}}
{{- define "conch.labels" -}}
{{ include "conch.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with merge (dict) (.labels | default dict) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* name, labels and annotations of an object. Takes the same, name and perhaps annotations. */ -}}
{{- define "conch.metadata" -}}
name: {{ .name | quote }}
labels:
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  {{- include "conch.labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
