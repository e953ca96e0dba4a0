{{- /* Takes root and image: an entry of `images`. */ -}}
{{- define "conch.image" -}}
{{- $name := .image.repository -}}
{{- with .root.Values.global.imageRegistry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if .image.digest -}}
{{ printf "%s@%s" $name .image.digest }}
{{- else -}}
{{ printf "%s:%s" $name (.image.tag | default .root.Chart.AppVersion) }}
{{- end -}}
{{- end -}}

{{- /* The entry of `images` that a model runs in, as YAML. */ -}}
{{- define "conch.model.image" -}}
{{- if eq .model.engine.runtime "tensorrt_llm" -}}
{{ toYaml (index .root.Values.images (.model.image | default "tritonGpu")) }}
{{- else if int .model.gpus.perNode -}}
{{ toYaml .root.Values.images.tritonCuda }}
{{- else -}}
{{ toYaml .root.Values.images.tritonCpu }}
{{- end -}}
{{- end -}}

{{- /* image and imagePullPolicy of a container. */ -}}
{{- define "conch.container.image" -}}
image: {{ include "conch.image" . | quote }}
imagePullPolicy: {{ .image.pullPolicy }}
{{- end -}}
