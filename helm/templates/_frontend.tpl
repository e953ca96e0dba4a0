{{- /* The options of `python -m frontend api`. Takes root, and model in the model's pod. */ -}}
{{- define "conch.frontend.args" -}}
{{- $frontend := .root.Values.frontend -}}
{{- $isSidecar := hasKey . "model" -}}
{{- $limits := $frontend.limits -}}
- "--host=::"
- --port=8000
- "--admin-host=::"
- --admin-port=9000
- --workers={{ int $frontend.workers }}
- --log-format={{ $frontend.logFormat }}
- --drain-timeout-s={{ int $frontend.drain.maxStreamSeconds }}
- --max-body-bytes={{ int64 $limits.maxBodyBytes }}
- --request-timeout-s={{ $limits.requestTimeoutSeconds }}
- --idle-timeout-s={{ $limits.idleTimeoutSeconds }}
- --max-in-flight={{ int64 $limits.maxInFlight }}
- --max-queue-wait-s={{ $limits.maxQueueWaitSeconds }}
- --wake-timeout-s={{ $frontend.wakeTimeoutSeconds }}
- --requests-per-minute={{ int64 $limits.requestsPerMinute }}
- --tokens-per-minute={{ int64 $limits.tokensPerMinute }}
- --max-concurrent={{ int64 $limits.maxConcurrent }}
{{- range $model := include "conch.models" .root | fromJsonArray }}
{{- $address := $isSidecar | ternary "127.0.0.1" (printf "dns:%s" (include "conch.model.host" (dict "root" $.root "model" $model))) }}
- {{ printf "--triton=%s=%s:8001" (prepend $model.aliases $model.servedName | join ",") $address | quote }}
{{- with include "conch.frontend.modelLimits" $model }}
- {{ printf "--model-limit=%s:%s" $model.servedName . | quote }}
{{- end }}
{{- end }}
{{- include "conch.tritonTls.connect" . }}
{{- with $frontend.defaultModel }}
- {{ printf "--default-model=%s" . | quote }}
{{- end }}
{{- if $frontend.inferencePool.enabled }}
- --picker-metrics
{{- end }}
{{- if $frontend.auth.allowAnonymous }}
- --allow-anonymous
{{- else }}
- --key-file=/etc/conch/keys/{{ include "conch.apiKeys.file" .root }}
{{- end }}
{{- if $frontend.tls.existingSecret }}
- --tls-cert=/etc/conch/tls/tls.crt
- --tls-key=/etc/conch/tls/tls.key
{{- if $frontend.tls.clientCa }}
- --tls-client-ca=/etc/conch/tls/ca.crt
{{- end }}
{{- end }}
{{- with include "conch.frontend.store" .root }}
- {{ printf "--store=%s" . | quote }}
{{- end }}
{{- with .root.Values.tracing.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
{{- with $frontend.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The value of --store; empty: the default, or the URL of a Secret. */ -}}
{{- define "conch.frontend.store" -}}
{{- with .Values.frontend.store -}}
{{- if .place }}{{ .place }}{{ else if and (not .existingSecret) (include "conch.frontend.hasSeveral" $) }}none{{ end -}}
{{- end -}}
{{- end -}}

{{- /* "true" if there may be several pods with a frontend, else empty. */ -}}
{{- define "conch.frontend.hasSeveral" -}}
{{- $scaled := .Values.frontend.sidecar | ternary (include "conch.models" . | fromJsonArray) (list .Values.frontend) -}}
{{- range $scaled }}{{ if or .autoscaling.enabled (gt (int .replicas) 1) }}true{{ end }}{{ end -}}
{{- end -}}

{{- /* A model's own limits in the syntax of --model-limit; empty without limits. */ -}}
{{- define "conch.frontend.modelLimits" -}}
{{- $limits := list -}}
{{- range $pair := list (list "in_flight" "maxInFlight") (list "prompt_tokens" "maxInFlightPromptTokens") -}}
{{- with int64 (index $.limits (last $pair)) }}{{ $limits = append $limits (printf "%s=%d" (first $pair) .) }}{{ end -}}
{{- end -}}
{{- with .limits.maxQueueWaitSeconds }}{{ $limits = append $limits (printf "queue_wait_s=%v" .) }}{{ end -}}
{{- join "," $limits -}}
{{- end -}}

{{- /*
"true" if the test is rendered, else empty. Without a required API key the test would fail, and it has no client
certificate.
*/ -}}
{{- define "conch.test.isRendered" -}}
{{- $hasKey := or .Values.frontend.auth.allowAnonymous (include "conch.test.key" .) -}}
{{- if and .Values.tests.enabled $hasKey (not .Values.frontend.tls.clientCa) }}true{{ end -}}
{{- end -}}

{{- /* Labels of the pods with the frontend: its own, or the leaders of the only model. */ -}}
{{- define "conch.frontend.selector" -}}
{{ include "conch.selector" (dict "root" . "component" (.Values.frontend.sidecar | ternary "model" "frontend")) }}
{{- if and .Values.frontend.sidecar (gt (int (include "conch.models" . | fromJsonArray | first).numNodes) 1) }}
leaderworkerset.sigs.k8s.io/worker-index: "0"
{{- end }}
{{- end -}}

{{- /* The Secrets that the frontend reads, as volumes by name: a list of pairs. */ -}}
{{- define "conch.frontend.secrets" -}}
{{- with include "conch.apiKeys.name" . }}
keys: {{ . | quote }}
{{- end }}
{{- with .Values.frontend.tls.existingSecret }}
tls: {{ . | quote }}
{{- end }}
{{- end -}}
