{{- /* Rules that the schema cannot express. Each message names the value and its correction. */ -}}
{{- define "conch.checks" -}}
{{- $root := . -}}
{{- if not (regexMatch "^[a-z]" (include "conch.prefix" .)) }}{{ fail (printf "release %s: names of Services begin with a letter, so the release's name must too: install it as llm-%s" .Release.Name .Release.Name) }}{{ end -}}
{{- include "conch.checks.scale" (dict "where" "frontend" "of" .Values.frontend) -}}
{{- include "conch.checks.additions" (dict "where" "frontend" "of" .Values.frontend "env" list) -}}
{{- include "conch.checks.labels" (dict "where" "commonLabels" "labels" .Values.commonLabels) -}}
{{- with .Values.frontend.httpRoute }}
{{- if and .enabled (not .parentRefs) }}{{ fail "frontend.httpRoute.parentRefs: write a Gateway, such as [{name: public}]" }}{{ end -}}
{{- end -}}
{{- with .Values.frontend.inferencePool }}
{{- if and .enabled (not $root.Values.frontend.sidecar) }}{{ fail "frontend.inferencePool: a picker chooses pods of models: write frontend.sidecar: true" }}{{ end -}}
{{- if and .enabled (not .endpointPicker.name) }}{{ fail "frontend.inferencePool.endpointPicker.name: write the Service of the endpoint picker" }}{{ end -}}
{{- end -}}
{{- with .Values.frontend.store }}
{{- if and .place .existingSecret }}{{ fail (printf "frontend.store: place %s and existingSecret contradict each other: remove one" .place) }}{{ end -}}
{{- if and .place (ne .place "none") (include "conch.frontend.hasSeveral" $root) -}}
{{- fail (printf "frontend.store.place %s: several frontend pods would each keep a part of the conversations: write none, or the Secret of a PostgreSQL or Redis as frontend.store.existingSecret" .place) -}}
{{- end -}}
{{- end -}}
{{- include "conch.checks.service" .Values.frontend.service -}}
{{- include "conch.checks.auth" . -}}
{{- include "conch.checks.tls" . -}}
{{- include "conch.checks.sidecar" . -}}
{{- $ids := dict -}}
{{- $names := dict -}}
{{- $hasArtifact := false -}}
{{- range $index, $model := include "conch.models" . | fromJsonArray -}}
{{- $where := printf "models[%d] (%s)" $index $model.name -}}
{{- $arguments := dict "root" $root "where" $where "model" $model -}}
{{- if hasKey $names $model.name }}{{ fail (printf "%s: another model has this name: write another `name`; clients see only `servedName` and `aliases`" $where) }}{{ end -}}
{{- $_ := set $names $model.name true -}}
{{- if $model.source.artifact }}{{ $hasArtifact = true }}{{ end -}}
{{- if or (not (regexMatch "^[A-Za-z0-9]([\\w.:-]*[A-Za-z0-9])?(/[A-Za-z0-9]([\\w.:-]*[A-Za-z0-9])?)*$" $model.servedName)) (regexMatch "--|__" $model.servedName) -}}
{{- fail (printf "%s: %q is not a valid model id: write a `servedName` of letters, digits and . : _ - between them, its parts separated by /, without -- and __" $where $model.servedName) -}}
{{- end -}}
{{- range $id := concat (list $model.servedName) $model.aliases -}}
{{- if or (not $id) (contains "," $id) }}{{ fail (printf "%s: aliases: %q is not a valid alias: write one that is not empty, without commas" $where $id) }}{{ end -}}
{{- if hasKey $ids $id }}{{ fail (printf "%s: %s has the id %q already: write another `servedName`, or remove it from `aliases`" $where (get $ids $id) $id) }}{{ end -}}
{{- $_ := set $ids $id $model.name -}}
{{- end -}}
{{- range $id, $_ := $model.source.adapters }}{{ $_ := set $ids $id $model.name }}{{ end -}}
{{- if or (has $model.name (list "frontend" "frontend-operations" "cache" "scripts" "pods" "dashboards" "alerts" "triton-key" "api-keys")) (hasSuffix "-pods" $model.name) (hasSuffix "-group" $model.name) (hasPrefix "test-" $model.name) -}}
{{- fail (printf "%s: another object of the chart has this name: write another `name`" $where) -}}
{{- end -}}
{{- include "conch.checks.runtime" $arguments -}}
{{- include "conch.checks.source" $arguments -}}
{{- include "conch.checks.gpus" $arguments -}}
{{- include "conch.checks.scale" (dict "where" $where "of" $model) -}}
{{- include "conch.checks.additions" (dict "where" $where "of" $model "env" (gt (int $model.numNodes) 1 | ternary (keys $root.Values.multinode.env) list)) -}}
{{- end -}}
{{- $default := .Values.frontend.defaultModel -}}
{{- if and $default (not (hasKey $ids $default)) (not $hasArtifact) -}}
{{- fail (printf "frontend.defaultModel: no model has the name %q: write one of %s" $default (keys $ids | sortAlpha | join ", ")) -}}
{{- end -}}
{{- include "conch.checks.cache" . -}}
{{- end -}}

{{- define "conch.checks.service" -}}
{{- $service := . -}}
{{- range $name, $types := dict "nodePort" "NodePort LoadBalancer" "externalTrafficPolicy" "NodePort LoadBalancer" "loadBalancerClass" "LoadBalancer" "loadBalancerSourceRanges" "LoadBalancer" -}}
{{- if and (index $service $name) (not (has $service.type (splitList " " $types))) -}}
{{- fail (printf "frontend.service.%s is for the type %s: the type is %s" $name ($types | replace " " " or ") $service.type) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "conch.checks.auth" -}}
{{- with .Values.frontend.auth }}
{{- if and .allowAnonymous .existingSecret }}{{ fail "frontend.auth: allowAnonymous lets every client in, existingSecret only those with a key: write one of them" }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "conch.checks.tls" -}}
{{- if and .Values.frontend.tls.clientCa (not .Values.frontend.tls.existingSecret) }}{{ fail "frontend.tls.clientCa: TLS is off: write frontend.tls.existingSecret, a Secret with tls.crt, tls.key and ca.crt" }}{{ end -}}
{{- if and .Values.tritonTls.clientSecret (not .Values.tritonTls.existingSecret) }}{{ fail "tritonTls.clientSecret: TLS is off: write tritonTls.existingSecret, a Secret for the models with tls.crt, tls.key and ca.crt" }}{{ end -}}
{{- end -}}

{{- define "conch.checks.sidecar" -}}
{{- $frontend := .Values.frontend -}}
{{- if $frontend.sidecar -}}
{{- $models := include "conch.models" . | fromJsonArray -}}
{{- if ne (len $models) 1 }}{{ fail (printf "frontend.sidecar: a pod serves one model, and models has %d: install a release for each" (len $models)) }}{{ end -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "podSpec" "podLabels" "podAnnotations" "extraContainers" "extraInitContainers" -}}
{{- if index $frontend $name }}{{ fail (printf "frontend.%s: with frontend.sidecar the frontend has no pods of its own: write it for the model" $name) }}{{ end -}}
{{- end -}}
{{- if or $frontend.autoscaling.enabled (ne (int $frontend.replicas) 1) }}{{ fail "frontend.replicas, frontend.autoscaling: with frontend.sidecar the frontend has no pods of its own: write them for the model" }}{{ end -}}
{{- if (first $models).autoscaling.scaleToZero }}{{ fail "frontend.sidecar: autoscaling.scaleToZero needs a frontend that counts the requests of a stopped model: write false for one of them" }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "conch.checks.runtime" -}}
{{- $engine := .model.engine -}}
{{- $version := (include "conch.model.image" . | fromYaml).tensorrtLlmVersion | default "" -}}
{{- if and .model.image (ne $engine.runtime "tensorrt_llm") -}}
{{- fail (printf "%s: image: %s is for engine.runtime tensorrt_llm" .where .model.image) -}}
{{- end -}}
{{- if and .model.build.enabled (not .model.hasEngine) -}}
{{- fail (printf "%s: build.enabled: %s has no engines to build: write build.enabled: false" .where (eq $engine.runtime "tensorrt_llm" | ternary "backend pytorch" $engine.runtime)) -}}
{{- end -}}
{{- if and .model.hasEngine (semverCompare ">=1.3.0-0" (regexFind "^[0-9.]+" $version)) -}}
{{- fail (printf "%s: images.%s.tensorrtLlmVersion %s cannot run engines, 1.2 is the last release that can: write engine.backend: pytorch, or an image from 26.04 to 26.07 and its version 1.2.1" .where (.model.image | default "tritonGpu") $version) -}}
{{- end -}}
{{- if and .model.hasEngine (not .model.build.enabled) (not .model.source.artifact) -}}
{{- fail (printf "%s: the source of the engine is missing: write build.enabled: true, or source.existingClaim and source.artifact of a built engine" .where) -}}
{{- end -}}
{{- if ne $engine.runtime "tensorrt_llm" -}}
{{- if $engine.llmOptions }}{{ fail (printf "%s: engine.llmOptions is for tensorrt_llm" .where) }}{{ end -}}
{{- range $name := list "maxBatchSize" "maxNumTokens" -}}
{{- if index $engine $name }}{{ fail (printf "%s: engine.%s is for tensorrt_llm: write serving.maxSequences" $.where $name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "conch.checks.source" -}}
{{- $source := .model.source -}}
{{- $isGpu := eq .model.engine.runtime "tensorrt_llm" -}}
{{- $given := list -}}
{{- with $source.huggingface.repo }}{{ $given = append $given "huggingface" }}{{ end -}}
{{- range $name := list "path" "gguf" "artifact" }}{{ with index $source $name }}{{ $given = append $given $name }}{{ end }}{{ end -}}
{{- if gt (len $given) 1 }}{{ fail (printf "%s: source.%s: write only one" .where (join " and source." $given)) }}{{ end -}}
{{- if and (not $given) (or $isGpu (ne .model.servedName "demo")) -}}
{{- fail (printf "%s: source: only the demo model needs no source: write source.huggingface.repo, source.path%s or source.artifact" .where ($isGpu | ternary "" ", source.gguf")) -}}
{{- end -}}
{{- $inClaim := or $source.path $source.gguf $source.artifact $source.tokenizer (values $source.adapters | join ", ") -}}
{{- if and $inClaim (not $source.existingClaim) }}{{ fail (printf "%s: source.existingClaim: write the name of the claim with %s" .where $inClaim) }}{{ end -}}
{{- if and $source.existingClaim (not $inClaim) }}{{ fail (printf "%s: source: write the path, gguf, artifact or adapters inside source.existingClaim %s" .where $source.existingClaim) }}{{ end -}}
{{- if and $source.tokenizer (not $source.gguf) }}{{ fail (printf "%s: source.tokenizer goes with source.gguf" .where) }}{{ end -}}
{{- if and $source.huggingface.gguf (not $source.huggingface.repo) }}{{ fail (printf "%s: source.huggingface.gguf: write the repository of the file, source.huggingface.repo" .where) }}{{ end -}}
{{- if and $source.mmproj (not $source.gguf) }}{{ fail (printf "%s: source.mmproj goes with source.gguf" .where) }}{{ end -}}
{{- if and $isGpu (or $source.gguf $source.huggingface.gguf) }}{{ fail (printf "%s: source%s.gguf is for llama_cpp: write source.huggingface.repo alone or source.path" .where (empty $source.gguf | ternary ".huggingface" "")) }}{{ end -}}
{{- if and $source.adapters $source.artifact }}{{ fail (printf "%s: source.adapters: the artifact has its own: build it with --adapter" .where) }}{{ end -}}
{{- end -}}

{{- define "conch.checks.gpus" -}}
{{- $perNode := int .model.gpus.perNode -}}
{{- $numGpus := int .model.numGpus -}}
{{- $parallelism := printf "parallelism.tensor %v x parallelism.pipeline %v" .model.parallelism.tensor .model.parallelism.pipeline -}}
{{- if not (hasKey .root.Values.resourceProfiles .model.gpus.profile) -}}
{{- fail (printf "%s: gpus.profile %q: write one of %s, or add it to resourceProfiles" .where .model.gpus.profile (keys .root.Values.resourceProfiles | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if eq .model.engine.runtime "tensorrt_llm" -}}
{{- if not $perNode }}{{ fail (printf "%s: gpus.perNode: tensorrt_llm needs GPUs: write the number on each node, %d for one node" .where $numGpus) }}{{ end -}}
{{- if or (mod $numGpus $perNode) (lt $numGpus $perNode) -}}
{{- fail (printf "%s: %s = %d GPUs do not fill nodes of gpus.perNode %d: write a number that divides %d" .where $parallelism $numGpus $perNode $numGpus) -}}
{{- end -}}
{{- if mod $perNode (int .model.parallelism.tensor) -}}
{{- fail (printf "%s: parallelism.tensor %v: GPUs that share layers must be in one node: write a number that divides gpus.perNode %d, such as %d, and parallelism.pipeline %d" .where .model.parallelism.tensor $perNode $perNode (div $numGpus $perNode)) -}}
{{- end -}}
{{- if and .model.isBuilt (eq .model.engine.backend "pytorch") (not .model.profile.gpu) -}}
{{- fail (printf "%s: resourceProfiles.%s.gpu: a download cannot detect the GPU: write h100, h200, b200, a100 or l40s" .where .model.gpus.profile) -}}
{{- end -}}
{{- else if gt $numGpus 1 -}}
{{- fail (printf "%s: %s: for tensorrt_llm: write 1 and 1, and gpus.perNode for llama_cpp" .where $parallelism) -}}
{{- else if and $perNode (ne .model.engine.runtime "llama_cpp") -}}
{{- fail (printf "%s: gpus.perNode %d: %s runs on CPUs: write 0" .where $perNode .model.engine.runtime) -}}
{{- else if and $perNode .model.source.adapters -}}
{{- fail (printf "%s: source.adapters: llama_cpp takes none on GPUs: write gpus.perNode 0" .where) -}}
{{- else if and $perNode (gt (int .model.serving.replicasPerPod) 1) -}}
{{- fail (printf "%s: serving.replicasPerPod %d: llama_cpp takes all GPUs of its pod: write 0, and replicas: %d" .where (int .model.serving.replicasPerPod) (int .model.serving.replicasPerPod)) -}}
{{- else if and $perNode (not (or .model.source.huggingface.repo .model.source.path .model.source.gguf .model.source.artifact)) -}}
{{- fail (printf "%s: gpus.perNode %d: the demo model has adapters, and llama_cpp takes none on GPUs: write 0" .where $perNode) -}}
{{- end -}}
{{- if and (ne (toString .model.gpus.layers) "auto") (or (not $perNode) (ne .model.engine.runtime "llama_cpp")) -}}
{{- fail (printf "%s: gpus.layers %v: for llama_cpp with gpus.perNode: write auto" .where .model.gpus.layers) -}}
{{- end -}}
{{- if and (gt (int .model.numNodes) 1) (gt (int .model.serving.replicasPerPod) 1) -}}
{{- fail (printf "%s: serving.replicasPerPod %d: the model spans %d nodes, and the replicas of a pod share one: write 0, and replicas: %d" .where (int .model.serving.replicasPerPod) (int .model.numNodes) (int .model.serving.replicasPerPod)) -}}
{{- end -}}
{{- if and (gt (int .model.numNodes) 1) (not .root.Values.multinode.sshKeySecret) -}}
{{- fail (printf "%s: the model spans %d nodes: write multinode.sshKeySecret, the name of a Secret of type kubernetes.io/ssh-auth (the README has the commands)" .where (int .model.numNodes)) -}}
{{- end -}}
{{- end -}}

{{- define "conch.checks.scale" -}}
{{- $strategy := .of.strategy -}}
{{- if and (has (toString $strategy.maxSurge) (list "0" "0%")) (has (toString $strategy.maxUnavailable) (list "0" "0%")) -}}
{{- fail (printf "%s: strategy.maxSurge and strategy.maxUnavailable are both 0, so an update could not begin: write 1 for one of them" .where) -}}
{{- end -}}
{{- if and (gt (int .of.numNodes) 1) (has (toString $strategy.maxSurge) (list "0" "0%")) (hasSuffix "%" (toString $strategy.maxUnavailable)) -}}
{{- fail (printf "%s: strategy.maxUnavailable %s of few groups of nodes is rounded down to 0: write a number" .where $strategy.maxUnavailable) -}}
{{- end -}}
{{- $autoscaling := .of.autoscaling -}}
{{- if and $autoscaling.enabled (gt (int $autoscaling.minReplicas) (int $autoscaling.maxReplicas)) -}}
{{- fail (printf "%s: autoscaling.minReplicas %v is more than maxReplicas %v" .where $autoscaling.minReplicas $autoscaling.maxReplicas) -}}
{{- end -}}
{{- if and $autoscaling.scaleToZero (not $autoscaling.enabled) -}}
{{- fail (printf "%s: autoscaling.scaleToZero: autoscaling is off: write autoscaling.enabled: true" .where) -}}
{{- end -}}
{{- if and $autoscaling.enabled (gt (int .of.replicas) 1) -}}
{{- fail (printf "%s: replicas %v and autoscaling.enabled contradict each other: write the number as autoscaling.minReplicas, and omit replicas" .where .of.replicas) -}}
{{- end -}}
{{- end -}}

{{- define "conch.checks.cache" -}}
{{- $needed := list -}}
{{- range include "conch.models" . | fromJsonArray }}{{ if .isBuilt }}{{ $needed = append $needed .name }}{{ end }}{{ end -}}
{{- if and $needed (eq .Values.cache.type "none") -}}
{{- fail (printf "cache.type: the models %s need a volume for engines or checkpoints: write pvc, existingClaim or hostPath" (join ", " $needed)) -}}
{{- end -}}
{{- if and (eq .Values.cache.type "existingClaim") (not .Values.cache.existingClaim) }}{{ fail "cache.existingClaim: write the name of the claim" }}{{ end -}}
{{- if eq .Values.cache.type "pvc" -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace (include "conch.cache.claim" .) -}}
{{- $size := include "conch.quantity" .Values.cache.size | float64 -}}
{{- $asked := dig "spec" "resources" "requests" "storage" "0" $claim -}}
{{- if and (lt $size (include "conch.quantity" $asked | float64)) (lt $size (include "conch.quantity" (dig "status" "capacity" "storage" "0" $claim) | float64)) -}}
{{- fail (printf "cache.size %s: the claim has %s, and a claim cannot shrink: write that" .Values.cache.size $asked) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.cache.type "hostPath") (not .Values.cache.hostPath) }}{{ fail "cache.hostPath: write the path of the folder" }}{{ end -}}
{{- end -}}
