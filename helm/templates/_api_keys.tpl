{{- /* Secret with the key file, "" without API keys. The chart makes one unless the values name another. */ -}}
{{- define "conch.apiKeys.name" -}}
{{- if not .Values.frontend.auth.allowAnonymous -}}
{{ .Values.frontend.auth.existingSecret | default (include "conch.name" (dict "root" . "suffix" "api-keys")) }}
{{- end -}}
{{- end -}}

{{- /* "true" if the chart makes that Secret, else empty. Its entry api-key is the key itself. */ -}}
{{- define "conch.apiKeys.isOwn" -}}
{{- with .Values.frontend.auth }}{{ if not (or .allowAnonymous .existingSecret) }}true{{ end }}{{ end -}}
{{- end -}}

{{- /* Secret with the API key of the test, "" without one. */ -}}
{{- define "conch.test.key" -}}
{{- $own := ternary (include "conch.apiKeys.name" .) "" (eq (include "conch.apiKeys.isOwn" .) "true") -}}
{{ .Values.tests.apiKey.existingSecret | default $own }}
{{- end -}}
