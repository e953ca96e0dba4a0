{{- /* The command that builds a model's artifact. Takes root and model. */ -}}
{{- define "conch.build.command" -}}
- python3
- -m
- build_engines
- build
- {{ .model.servedName | quote }}
- --runtime={{ .model.engine.runtime }}
{{- with .model.source.huggingface }}
{{- if .gguf }}
- --gguf={{ .repo }}@{{ .revision }}:{{ .gguf }}
{{- else if .repo }}
- --checkpoint={{ .repo }}@{{ .revision }}
{{- end }}
{{- end }}
{{- with .model.source.path }}
- --checkpoint=/source/{{ . }}
{{- end }}
{{- with .model.source.gguf }}
- --gguf=/source/{{ . }}
{{- end }}
{{- with .model.source.tokenizer }}
- --tokenizer=/source/{{ . }}
{{- end }}
{{- range $name, $folder := .model.source.adapters }}
- {{ printf "--adapter=%s=/source/%s" $name $folder | quote }}
{{- end }}
{{- with .model.source.mmproj }}
- --mmproj=/source/{{ . }}
{{- end }}
{{- with .model.engine.precision }}
- --precision={{ . }}
{{- end }}
{{- range $name, $value := .model.engine.options }}
- {{ printf "--option=%s=%s" $name $value | quote }}
{{- end }}
{{- if eq .model.engine.runtime "tensorrt_llm" }}
{{- include "conch.build.gpuOptions" . }}
{{- else }}
{{- with int .model.engine.maxSeqLen }}
- --context-window={{ . }}
{{- end }}
{{- end }}
{{- if .model.isBuilt }}
- --home=/models/store
- --kept={{ include "conch.model.folder" . }}
- --kept={{ include "conch.model.formerFolder" . }}
- --link=/state/artifact
{{- else }}
- --home=/state
{{- include "conch.renderOptions" . }}
{{- end }}
{{- with .model.build.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "conch.build.gpuOptions" }}
- --backend={{ .model.engine.backend }}
{{- with .model.profile.gpu }}
- --gpu={{ . }}
{{- end }}
- --gpus={{ int .model.numGpus }}
- --nodes={{ int .model.numNodes }}
- --tensor={{ int .model.parallelism.tensor }}
{{- with int .model.engine.maxSeqLen }}
- --max-seq-len={{ . }}
{{- end }}
{{- with int .model.engine.maxBatchSize }}
- --max-batch-size={{ . }}
{{- end }}
{{- with int .model.engine.maxNumTokens }}
- --max-num-tokens={{ . }}
{{- end }}
{{- if .model.hasEngine }}
- --tensorrt-llm-examples=/opt/TensorRT-LLM
{{- end }}
{{- end -}}

{{- /* Options of `render`, and of the build of a small model. Aliases are only the frontend's: the engine keeps running. */ -}}
{{- define "conch.renderOptions" }}
{{- range $name, $flag := dict "replicasPerPod" "replicas" "maxSequences" "max-sequences" "maxWaiting" "max-waiting" "numThreads" "num-threads" "tokenizerInstances" "tokenizer-instances" }}
{{- with int (index $.model.serving $name) }}
- --{{ $flag }}={{ . }}
{{- end }}
{{- end }}
{{- if and (eq .model.engine.runtime "llama_cpp") (gt (int .model.gpus.perNode) 0) }}
{{- /* llama.cpp must find each named device, so a pod without all its GPUs fails. */ -}}
{{- $devices := list -}}
{{- range $number := until (int .model.gpus.perNode) }}{{ $devices = append $devices (printf "CUDA%d" $number) }}{{ end }}
- --device={{ join "," $devices }}
- --gpu-layers={{ .model.gpus.layers }}
{{- end }}
{{- range $key, $value := .model.engine.llmOptions }}
- {{ printf "--llm-option=%s=%s" $key (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
{{- end }}
{{- end -}}

{{- /*
The containers before the server. The last one writes the repository to /state. A model for GPUs has another one before it,
which compiles or downloads its artifact into the cache. Takes root and model.
*/ -}}
{{- define "conch.model.initContainers" -}}
{{- include "conch.list" .model.extraInitContainers }}
{{- if .model.isBuilt }}
- {{- include "conch.build.container" . | nindent 2 }}
{{- end }}
- {{- include "conch.repository.container" . | nindent 2 }}
{{- end -}}

{{- /* It keeps the digests of large files beside the artifacts, so that the next pod need not read the files. */ -}}
{{- define "conch.repository.container" -}}
{{- $image := include "conch.model.image" . | fromYaml -}}
name: repository
{{ include "conch.container.image" (dict "root" .root "image" $image) }}
command:
  {{- if or .model.isBuilt .model.source.artifact }}
  - python3
  - -m
  - build_engines
  - render
  - {{ .model.isBuilt | ternary "/state/artifact" (printf "/source/%s" .model.source.artifact) }}
  - {{ printf "--name=%s" .model.servedName | quote }}
  - --repository=/state/repository
  {{- include "conch.renderOptions" . | nindent 2 }}
  {{- else }}
  {{- include "conch.build.command" . | nindent 2 }}
  {{- end }}
env:
  {{- include "conch.writable.env" . | nindent 2 }}
  {{- with .model.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- include "conch.envFrom" .model }}
resources:
  {{- include "conch.triton.resources" . | nindent 2 }}
securityContext:
  {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
volumeMounts:
  {{- include "conch.writable.mounts" . | nindent 2 }}
  {{- include "conch.model.mounts" (merge (dict "writesCache" true) .) | nindent 2 }}
{{- end -}}

{{- /*
Ends at once if the cache has the artifact, in the format of this release. Other pods that build the same one wait for
the first. It alone has the token of the hub.
*/ -}}
{{- define "conch.build.container" -}}
{{- $image := include "conch.model.image" . | fromYaml -}}
name: {{ .model.hasEngine | ternary "build" "download" }}
{{ include "conch.container.image" (dict "root" .root "image" $image) }}
command:
  {{- include "conch.build.command" . | nindent 2 }}
env:
  {{- include "conch.writable.env" . | nindent 2 }}
  - name: HF_HOME
    value: /models/hub
  {{- with .root.Values.huggingface.existingSecret }}
  - name: HF_TOKEN_PATH
    value: /etc/conch/huggingface/{{ $.root.Values.huggingface.key }}
  {{- end }}
  {{- with .model.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- include "conch.envFrom" .model }}
resources:
  {{- include "conch.build.resources" . | nindent 2 }}
securityContext:
  {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
volumeMounts:
  {{- include "conch.writable.mounts" . | nindent 2 }}
  {{- include "conch.model.mounts" (merge (dict "writesCache" true) .) | nindent 2 }}
  - name: shared-memory
    mountPath: /dev/shm
  {{- if .root.Values.huggingface.existingSecret }}
  - name: huggingface
    mountPath: /etc/conch/huggingface
    readOnly: true
  {{- end }}
{{- end -}}

{{- /*
Those of the model for a build. A download needs neither its GPUs nor as much memory; but llama.cpp, which tries the model,
needs the driver of its GPUs, and these are the pod's in any case. It has a limit where the model has one,
as a quota may require: the model's, or its own request if that is larger.
*/ -}}
{{- define "conch.build.resources" -}}
{{- $resources := deepCopy .model.resources -}}
{{- if not .model.hasEngine -}}
{{- $resources = dict "requests" (mergeOverwrite (dict "cpu" "2" "memory" "8Gi") (.model.build.resources.requests | default dict)) "limits" dict -}}
{{- if eq .model.engine.runtime "llama_cpp" -}}
{{- range $name, $number := include "conch.model.gpuResource" .model | fromYaml -}}
{{- range $part := list $resources.requests $resources.limits }}{{ $_ := set $part $name $number }}{{ end -}}
{{- end -}}
{{- with .model.resources.claims }}{{ $_ := set $resources "claims" . }}{{ end -}}
{{- end -}}
{{- range $name, $request := $resources.requests -}}
{{- with index ($.model.resources.limits | default dict) $name -}}
{{- $isLarger := gt (include "conch.quantity" . | float64) (include "conch.quantity" $request | float64) -}}
{{- $_ := set $resources.limits $name ($isLarger | ternary . $request) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $resources (deepCopy .model.build.resources)) -}}
{{- end -}}
