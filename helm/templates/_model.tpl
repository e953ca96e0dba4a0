{{- /*
All models as a JSON list, with the defaults of `modelDefaults` and derived fields: servedName, numGpus, numNodes,
numPodGpus (of all replicas in a pod), profile (the entry of `resourceProfiles`), resources, isBuilt (its pods compile or
download the artifact into the cache), and hasEngine (a compiled engine of TensorRT-LLM).
*/ -}}
{{- define "conch.models" -}}
{{- $root := . -}}
{{- $models := list -}}
{{- $given := .Values.models | default (list (dict "name" "demo")) -}}
{{- if kindIs "map" $given -}}
{{- $given = list -}}
{{- range $name, $own := .Values.models }}{{ $given = append $given (merge (dict "name" $name) $own) }}{{ end -}}
{{- end -}}
{{- range $own := $given -}}
{{- $model := mergeOverwrite (deepCopy $root.Values.modelDefaults) (deepCopy $own) -}}
{{- $numGpus := mul (int $model.parallelism.tensor) (int $model.parallelism.pipeline) -}}
{{- $numNodes := 1 -}}
{{- if and (eq $model.engine.runtime "tensorrt_llm") (gt (int $model.gpus.perNode) 0) -}}{{- $numNodes = div $numGpus (int $model.gpus.perNode) -}}{{- end -}}
{{- $profile := index $root.Values.resourceProfiles $model.gpus.profile | default dict -}}
{{- $isGpu := eq $model.engine.runtime "tensorrt_llm" -}}
{{- $isBuilt := and (or $isGpu (ne $model.source.huggingface.repo "")) (not $model.source.artifact) -}}
{{- if and (gt (int $numNodes) 1) (not $own.strategy) (eq (toJson $model.strategy) (toJson (dict "maxSurge" 1 "maxUnavailable" 0))) -}}
{{- /* Few clusters have free nodes for another group, and older controllers of LeaderWorkerSet never finish a surge. */ -}}
{{- $_ := set $model "strategy" (dict "maxSurge" 0 "maxUnavailable" 1) -}}
{{- end -}}
{{- $_ := set $model "servedName" ($model.servedName | default $model.name) -}}
{{- $_ := set $model "aliases" ($model.aliases | default list) -}}
{{- $_ := set $model "numGpus" $numGpus -}}
{{- $_ := set $model "numNodes" $numNodes -}}
{{- $_ := set $model "numPodGpus" (mul (int $model.gpus.perNode) (max 1 (int $model.serving.replicasPerPod))) -}}
{{- $_ := set $model "profile" $profile -}}
{{- $_ := set $model "isBuilt" $isBuilt -}}
{{- $_ := set $model "hasEngine" (and $isGpu (eq $model.engine.backend "engine")) -}}
{{- $_ := set $model "resources" (include "conch.model.resources" (dict "model" $model "own" $own) | fromYaml) -}}
{{- $models = append $models $model -}}
{{- end -}}
{{- toJson $models -}}
{{- end -}}

{{- /* Resources of a pod. With GPUs: the profile's for each GPU, overridden by the model's own. */ -}}
{{- define "conch.model.resources" -}}
{{- $numGpus := int .model.numPodGpus -}}
{{- if $numGpus -}}
{{- $perGpu := .model.profile.perGpu | default dict -}}
{{- $requests := dict -}}
{{- range $name := list "cpu" "memory" -}}
{{- with index $perGpu $name -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- $_ := set $requests $name (printf "%d%s" (mul (int $number) $numGpus) (trimPrefix $number .)) -}}
{{- end -}}
{{- end -}}
{{- $gpus := include "conch.model.gpuResource" .model | fromYaml -}}
{{- $resources := mergeOverwrite (dict "requests" $requests "limits" dict) (deepCopy (.own.resources | default dict)) -}}
{{- $_ := mergeOverwrite $resources.limits $gpus -}}
{{- $_ := mergeOverwrite $resources.requests $gpus -}}
{{- toYaml $resources -}}
{{- else -}}
{{- toYaml .model.resources -}}
{{- end -}}
{{- end -}}

{{- /* The resource of a pod's GPUs, and their number; nothing without one. Takes a model. */ -}}
{{- define "conch.model.gpuResource" -}}
{{- $resource := hasKey .profile "gpuResource" | ternary .profile.gpuResource "nvidia.com/gpu" -}}
{{- if and $resource (int .numPodGpus) }}{{ toYaml (dict $resource (toString .numPodGpus)) }}{{ end -}}
{{- end -}}

{{- /*
The inputs of a model's artifact, as JSON. The lists name each of them: one more value would give all artifacts new
folders. Values for the rendered repository (llmOptions), images, node labels and aliases change no artifact.
*/ -}}
{{- define "conch.model.inputs" -}}
{{- $hub := pick .model.source.huggingface "repo" "revision" -}}
{{- with .model.source.huggingface.gguf }}{{ $_ := set $hub "gguf" . }}{{ end -}}
{{- $source := pick .model.source "existingClaim" "path" "gguf" "tokenizer" "mmproj" "artifact" "adapters" -}}
{{- toJson (dict
    "model" .model.servedName "source" (set $source "huggingface" $hub)
    "engine" (pick .model.engine "runtime" "backend" "precision" "maxSeqLen" "maxBatchSize" "maxNumTokens" "options")
    "parallelism" (pick .model.parallelism "tensor" "pipeline")
    "perNode" (eq .model.engine.runtime "tensorrt_llm" | ternary .model.gpus.perNode 0) "gpu" (.model.profile.gpu | default .model.profile.gpuProduct)
    "version" ((include "conch.model.image" . | fromYaml).tensorrtLlmVersion | default "") "extraArgs" .model.build.extraArgs) -}}
{{- end -}}

{{- /*
Folder in the cache with a link to a model's artifact in /models/store, by a digest of these inputs without the names of the
model. Values that are not set are left out, so that a new one in the chart changes no folder.
*/ -}}
{{- define "conch.model.folder" -}}
{{- $given := include "conch.model.inputs" . | fromJson -}}
{{- $inputs := dict -}}
{{- range $part, $values := dict "hub" $given.source.huggingface "source" (omit $given.source "huggingface") "engine" $given.engine "" (omit $given "model" "source" "engine") -}}
{{- range $name, $value := $values }}{{ if $value }}{{ $_ := set $inputs (printf "%s.%s" $part $name) $value }}{{ end }}{{ end -}}
{{- end -}}
{{- $name := base ($given.source.huggingface.repo | default $given.source.path) -}}
/models/{{ regexReplaceAll "[^A-Za-z0-9.]+" $name "-" }}-{{ toJson $inputs | sha256sum | trunc 8 }}
{{- end -}}

{{- /* The folder that charts until November 2026 built in: its artifact is served, and new ones are in other folders. */ -}}
{{- define "conch.model.formerFolder" -}}
/models/{{ .model.name }}-{{ include "conch.model.inputs" . | sha256sum | trunc 8 }}
{{- end -}}
