{{- /* The command that builds a model's artifact. Takes root and model. */ -}}
{{- define "conch.build.command" -}}
- python3
- -m
- build_engines
- build
- {{ .model.servedName | quote }}
- --runtime={{ .model.engine.runtime }}
{{- with .model.source.huggingface }}
{{- if .repo }}
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
{{- with .model.source.mmproj }}
- --mmproj=/source/{{ . }}
{{- end }}
{{- with .model.engine.precision }}
- --precision={{ . }}
{{- end }}
{{- range $name, $value := .model.engine.options }}
- {{ printf "--option=%s=%s" $name $value | quote }}
{{- end }}
{{- range .model.aliases }}
- {{ printf "--alias=%s" . | quote }}
{{- end }}
{{- if eq .model.engine.runtime "tensorrt_llm" }}
{{- include "conch.build.gpuOptions" . }}
{{- else }}
{{- with int .model.engine.maxSeqLen }}
- --context-window={{ . }}
{{- end }}
- --state-dir=/state
{{- include "conch.serveOptions" . }}
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
{{- if eq .model.engine.backend "engine" }}
- --tensorrt-llm-examples=/opt/TensorRT-LLM
{{- end }}
- --state-dir={{ include "conch.model.folder" . }}
{{- end -}}

{{- define "conch.serveOptions" }}
{{- range $name, $flag := dict "maxSequences" "max-sequences" "maxWaiting" "max-waiting" "numThreads" "num-threads" "tokenizerInstances" "tokenizer-instances" }}
{{- with int (index $.model.serving $name) }}
- --{{ $flag }}={{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- /*
The container that writes the repository to /state. It builds a small model, renders a finished artifact, or waits for the
artifact of a Job. Takes root and model.
*/ -}}
{{- define "conch.repository.container" -}}
{{- $image := include "conch.model.image" . | fromYaml -}}
name: repository
{{ include "conch.container.image" (dict "root" .root "image" $image) }}
command:
  {{- if .model.isBuilt }}
  - /bin/sh
  - /etc/conch/scripts/render-when-built.sh
  - {{ include "conch.model.folder" . }}
  - {{ .model.build.waitSeconds | int | quote }}
  - --repository=/state/repository
  {{- include "conch.serveOptions" . | nindent 2 }}
  {{- else if .model.source.artifact }}
  - python3
  - -m
  - build_engines
  - render
  - /source/{{ .model.source.artifact }}
  - --repository=/state/repository
  {{- include "conch.serveOptions" . | nindent 2 }}
  {{- else }}
  {{- include "conch.build.command" . | nindent 2 }}
  {{- end }}
env:
  {{- include "conch.writable.env" . | nindent 2 }}
  {{- with .model.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- include "conch.triton.resources" . | nindent 2 }}
securityContext:
  {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
volumeMounts:
  {{- include "conch.writable.mounts" . | nindent 2 }}
  {{- include "conch.model.mounts" . | nindent 2 }}
  {{- if .model.isBuilt }}
  - name: scripts
    mountPath: /etc/conch/scripts
    readOnly: true
  {{- end }}
{{- end -}}

{{- /* Resources of a Job: those of its model for a build; a download needs neither GPUs nor as much memory. */ -}}
{{- define "conch.build.resources" -}}
{{- $download := dict "requests" (dict "cpu" "2" "memory" "8Gi") -}}
{{- $resources := eq .model.engine.backend "engine" | ternary (deepCopy .model.resources) $download -}}
{{- toYaml (mergeOverwrite $resources (deepCopy .model.build.resources)) -}}
{{- end -}}
