{{- /*
Checks additions to a pod. Each must be unique and differ from the chart's own names; else a cluster refuses the pod.
Takes where, of (the frontend's values, or a model) and env: names of variables from other values.
*/ -}}
{{- define "conch.checks.additions" -}}
{{- $own := dict
    "extraEnv" "^(HOME|XDG_CACHE_HOME|PYTHONDONTWRITEBYTECODE|HF_HOME|HF_TOKEN_PATH|POD_IP|CONCH_.*)$"
    "extraVolumes" "^(home|tmp|state|models|source|scripts|shared-memory|ssh|huggingface|keys|tls|triton-tls|triton-client)$"
    "extraContainers" "^(frontend|triton|ranks|repository|build|download)$"
    "extraInitContainers" "^(frontend|triton|ranks|repository|build|download)$"
    "extraVolumeMounts" "^(/home/conch|/tmp|/state|/models|/source|/dev/shm|/etc/conch(/.*)?)$" -}}
{{- range .env }}{{ if regexMatch $own.extraEnv . }}{{ fail (printf "multinode.env: %s is the chart's own: write another name" .) }}{{ end }}{{ end -}}
{{- $seen := dict "extraEnv" .env "extraVolumes" list "extraVolumeMounts" list "extraContainers" list "extraInitContainers" list -}}
{{- range $field, $key := dict "extraEnv" "name" "extraVolumes" "name" "extraVolumeMounts" "mountPath" "extraContainers" "name" "extraInitContainers" "name" -}}
{{- range index $.of $field -}}
{{- $name := index . $key | trimSuffix "/" -}}
{{- if regexMatch (index $own $field) $name }}{{ fail (printf "%s: %s: %s is the chart's own: write another %s" $.where $field $name $key) }}{{ end -}}
{{- if has $name (index $seen $field) }}{{ fail (printf "%s: %s: %s occurs twice: remove one" $.where $field $name) }}{{ end -}}
{{- $_ := set $seen $field (append (index $seen $field) $name) -}}
{{- end -}}
{{- end -}}
{{- range .of.extraVolumeMounts -}}
{{- if not (or (has .name $seen.extraVolumes) (regexMatch $own.extraVolumes .name)) }}{{ fail (printf "%s: extraVolumeMounts: the volume %s is missing: add it to extraVolumes" $.where .name) }}{{ end -}}
{{- end -}}
{{- range $field, $instead := dict "containers" "extraContainers" "initContainers" "extraInitContainers" "volumes" "extraVolumes" -}}
{{- if hasKey $.of.podSpec $field }}{{ fail (printf "%s: podSpec.%s would replace the chart's own: write %s" $.where $field $instead) }}{{ end -}}
{{- end -}}
{{- include "conch.checks.labels" (dict "where" (printf "%s: podLabels" .where) "labels" .of.podLabels) -}}
{{- include "conch.checks.resources" (dict "where" (printf "%s: resources" .where) "resources" .of.resources) -}}
{{- with .of.build }}{{ include "conch.checks.resources" (dict "where" (printf "%s: build.resources" $.where) "resources" .resources) }}{{ end -}}
{{- end -}}

{{- define "conch.checks.labels" -}}
{{- range $key, $_ := .labels -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|version|managed-by)|helm\\.sh/.*|conch/.*|leaderworkerset\\.sigs\\.k8s\\.io/.*)$" $key -}}
{{- fail (printf "%s: %s is the chart's own, for selecting pods: write another key" $.where $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "conch.checks.resources" -}}
{{- range $name, $request := .resources.requests -}}
{{- with index ($.resources.limits | default dict) $name -}}
{{- if gt (include "conch.quantity" $request | float64) (include "conch.quantity" . | float64) -}}
{{- fail (printf "%s: requests.%s %v exceeds limits.%s %v, which may be a default: write both" $.where $name $request $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A quantity, such as 500m or 2Gi, as a number. */ -}}
{{- define "conch.quantity" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- mulf $number (index $units (trimPrefix $number $text)) -}}
{{- end -}}
