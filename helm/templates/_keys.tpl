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

{{- define "conch.apiKeys.file" -}}
{{ empty .Values.frontend.auth.existingSecret | ternary "keys.json" .Values.frontend.auth.key }}
{{- end -}}

{{- /* Secret with the API key of the test, "" without one. */ -}}
{{- define "conch.test.key" -}}
{{- $own := ternary (include "conch.apiKeys.name" .) "" (eq (include "conch.apiKeys.isOwn" .) "true") -}}
{{ .Values.tests.apiKey.existingSecret | default $own }}
{{- end -}}

{{- /* Triton's key, shared by the frontend and the models' pods. */ -}}
{{- define "conch.tritonKey.env" -}}
- name: CONCH_TRITON_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .Values.tritonKey.existingSecret | default (include "conch.name" (dict "root" . "suffix" "triton-key")) | quote }}
      key: {{ empty .Values.tritonKey.existingSecret | ternary "key" .Values.tritonKey.key | quote }}
{{- end -}}

{{- /*
A Secret with a random key, which Helm makes once, as a hook: it is in no revision, so no upgrade, rollback or uninstall
changes it. The Secret of a chart until November 2026 is in its revisions, and stays in them with its content.
Takes root, suffix, entry, prefix of the key, former: the entry in such a chart, and optionally file: the entry with a key file.
*/ -}}
{{- define "conch.ownSecret" -}}
{{- $release := .root.Release -}}
{{- $name := include "conch.name" . -}}
{{- $found := lookup "v1" "Secret" $release.Namespace $name -}}
{{- $annotations := dig "metadata" "annotations" dict $found -}}
{{- $isOfRevision := and (hasKey $annotations "meta.helm.sh/release-name") (not (hasKey $annotations "helm.sh/hook")) -}}
{{- if or (not $found) $isOfRevision -}}
{{- $data := $found.data | default dict -}}
{{- $key := get $data .entry | default (get $data (.former | default .entry)) | b64dec | default (printf "%s%s" .prefix (randAlphaNum 43)) -}}
{{- $new := dict .entry (b64enc $key) -}}
{{- with .file -}}
{{- $keys := dict "keys" (list (dict "name" "default" "sha256" (sha256sum $key))) -}}
{{- $_ := set $new . (get $data $.formerFile | default (toJson $keys | b64enc)) -}}
{{- end -}}
{{- $kept := dict "helm.sh/resource-policy" "keep" -}}
{{- if not $isOfRevision -}}
{{- $kept = merge $kept (dict "helm.sh/hook" "pre-install,pre-upgrade" "meta.helm.sh/release-name" $release.Name "meta.helm.sh/release-namespace" $release.Namespace) -}}
{{- end -}}
apiVersion: v1
kind: Secret
metadata:
  {{- include "conch.metadata" (dict "root" .root "component" .suffix "name" $name "annotations" $kept) | nindent 2 }}
type: Opaque
data:
  {{- toYaml (merge (dict) $data $new) | nindent 2 }}
{{- else -}}
{{- range list .entry .file | compact -}}
{{- if not (hasKey ($found.data | default dict) .) }}{{ fail (printf "the Secret %s has no entry %s, which the pods read: delete the Secret, and try again" $name .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
