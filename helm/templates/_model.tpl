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
{{- if gt (int $model.gpus.perNode) 0 -}}{{- $numNodes = div $numGpus (int $model.gpus.perNode) -}}{{- end -}}
{{- $profile := index $root.Values.resourceProfiles $model.gpus.profile | default dict -}}
{{- $isGpu := eq $model.engine.runtime "tensorrt_llm" -}}
{{- $isBuilt := and (or $isGpu (ne $model.source.huggingface.repo "")) (not $model.source.artifact) -}}
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
{{- $resource := hasKey .model.profile "gpuResource" | ternary .model.profile.gpuResource "nvidia.com/gpu" -}}
{{- $gpus := empty $resource | ternary dict (dict $resource (toString $numGpus)) -}}
{{- $resources := mergeOverwrite (dict "requests" $requests "limits" dict) (deepCopy (.own.resources | default dict)) -}}
{{- $_ := mergeOverwrite $resources.limits $gpus -}}
{{- $_ := mergeOverwrite $resources.requests $gpus -}}
{{- toYaml $resources -}}
{{- else -}}
{{- toYaml .model.resources -}}
{{- end -}}
{{- end -}}

{{- /*
Digest of the inputs of a model's artifact, for the name of its folder in the cache. What changes no artifact is not among
them: names, images, labels of nodes. The manifest of an artifact decides whether the artifact is valid.
*/ -}}
{{- define "conch.model.key" -}}
{{- $engine := omit .model.engine "llmOptions" -}}
{{- $source := deepCopy .model.source -}}
{{- if not $source.huggingface.gguf }}{{ $_ := unset $source.huggingface "gguf" }}{{ end -}}
{{- $inputs := dict
    "model" .model.servedName "source" $source "engine" $engine
    "parallelism" .model.parallelism "perNode" .model.gpus.perNode "gpu" (.model.profile.gpu | default .model.profile.gpuProduct)
    "version" ((include "conch.model.image" . | fromYaml).tensorrtLlmVersion | default "") "extraArgs" .model.build.extraArgs -}}
{{- toJson $inputs | sha256sum | trunc 8 -}}
{{- end -}}

{{- /* Folder of a model's artifact in the cache. */ -}}
{{- define "conch.model.folder" -}}
/models/{{ .model.name }}-{{ include "conch.model.key" . }}
{{- end -}}
