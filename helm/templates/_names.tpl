{{- /*
The name of an object of this release, at most 63 characters, or .max: a longer one ends with a digest of itself.
Takes root and suffix. A release's name may have dots, which a Service's may not.
*/ -}}
{{- define "conch.name" -}}
{{- $full := printf "%s-%s" .root.Release.Name .suffix | replace "." "-" -}}
{{- $max := int (.max | default 63) -}}
{{- if le (len $full) $max -}}
{{ $full }}
{{- else -}}
{{ printf "%s-%s" ($full | trunc (int (sub $max 9)) | trimSuffix "-") (sha256sum $full | trunc 8) }}
{{- end -}}
{{- end -}}

{{- define "conch.frontend.name" -}}
{{ include "conch.name" (dict "root" . "suffix" "frontend") }}
{{- end -}}

{{- /*
Of a model's Deployment, or LeaderWorkerSet. The latter's controller makes a headless Service of the same name, by which the
pods of a group find each other: no Service of ours may be called so. And it makes StatefulSets whose names add the number
of a group, of up to three digits, and whose pods have a label that adds a digest of ten characters: 48 leave room for both.
*/ -}}
{{- define "conch.model.name" -}}
{{- if gt (int .model.numNodes) 1 -}}
{{ include "conch.name" (dict "root" .root "suffix" (printf "%s-group" .model.name) "max" 48) }}
{{- else -}}
{{ include "conch.name" (dict "root" .root "suffix" .model.name) }}
{{- end -}}
{{- end -}}

{{- /* Of the headless Service, whose addresses are those of the ready pods. */ -}}
{{- define "conch.model.pods" -}}
{{ include "conch.name" (dict "root" .root "suffix" (printf "%s-pods" .model.name)) }}
{{- end -}}

{{- /* Its name for the frontend. With TLS it is that of a certificate, which *.NAMESPACE.svc is enough for, too. */ -}}
{{- define "conch.model.host" -}}
{{ include "conch.model.pods" . }}{{ if .root.Values.tritonTls.existingSecret }}.{{ .root.Release.Namespace }}.svc{{ end }}
{{- end -}}

{{- define "conch.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "conch.name" (dict "root" . "suffix" "pods")) "default") }}
{{- end -}}

{{- define "conch.scripts.name" -}}
{{ include "conch.name" (dict "root" . "suffix" "scripts") }}
{{- end -}}

{{- define "conch.cache.claim" -}}
{{- if eq .Values.cache.type "existingClaim" -}}
{{ .Values.cache.existingClaim }}
{{- else -}}
{{ include "conch.name" (dict "root" . "suffix" "cache") }}
{{- end -}}
{{- end -}}

{{- define "conch.operations.name" -}}
{{ include "conch.name" (dict "root" . "suffix" "frontend-operations") }}
{{- end -}}

{{- define "conch.test.name" -}}
{{ include "conch.name" (dict "root" . "suffix" "test-api") }}
{{- end -}}
