{{- /* The first part of all names. */ -}}
{{- define "conch.prefix" -}}
{{- with .Values -}}
{{ .fullnameOverride | default (list $.Release.Name .nameOverride | compact | join "-") }}
{{- end -}}
{{- end -}}

{{- /*
The name of an object of this release. A name above .max (63) characters is cut, and ends with a digest. Takes root and
suffix. Dots, which the name of a Service cannot have, become hyphens.
*/ -}}
{{- define "conch.name" -}}
{{- $full := printf "%s-%s" (include "conch.prefix" .root) .suffix | replace "." "-" -}}
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
Name of a model's Deployment or LeaderWorkerSet. The LeaderWorkerSet controller makes a headless Service of the same name
for the pods of a group, so the chart's own Services have other names. It also appends up to three digits to the names of
StatefulSets, and a digest of ten characters to a label of their pods, so the name has at most 48 characters.
*/ -}}
{{- define "conch.model.name" -}}
{{- if gt (int .model.numNodes) 1 -}}
{{ include "conch.name" (dict "root" .root "suffix" (printf "%s-group" .model.name) "max" 48) }}
{{- else -}}
{{ include "conch.name" (dict "root" .root "suffix" .model.name) }}
{{- end -}}
{{- end -}}

{{- /* Name of the headless Service, whose addresses are those of the ready pods. */ -}}
{{- define "conch.model.pods" -}}
{{ include "conch.name" (dict "root" .root "suffix" (printf "%s-pods" .model.name)) }}
{{- end -}}

{{- /* Host name of that Service. With TLS it matches a certificate for *.NAMESPACE.svc. */ -}}
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
{{- /* A claim keeps its class and modes for ever, so others have another name. */ -}}
{{ include "conch.name" (dict "root" . "suffix" (printf "cache-%s" (list .Values.cache.accessModes .Values.cache.storageClassName | toJson | sha256sum | trunc 5))) }}
{{- end -}}
{{- end -}}

{{- define "conch.operations.name" -}}
{{ include "conch.name" (dict "root" . "suffix" "frontend-operations") }}
{{- end -}}

{{- define "conch.test.name" -}}
{{ include "conch.name" (dict "root" . "suffix" "test-api") }}
{{- end -}}
