{{- /*
The pod that builds or downloads. The template of a Job is immutable, so its digest is in the name of the Job. Another Job
with the same folder finds an existing artifact. Takes root and model.
*/ -}}
{{- define "conch.job.template" -}}
{{- $compiles := eq .model.engine.backend "engine" -}}
{{- $image := include "conch.model.image" . | fromYaml -}}
{{- $labels := dict "root" .root "model" .model "component" "build" "labels" .model.podLabels -}}
metadata:
  labels:
    {{- include "conch.labels" $labels | nindent 4 }}
  {{- with merge (dict) .model.podAnnotations .root.Values.commonAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "conch.pod.common" . | nindent 2 }}
  {{- $priority := dict "priorityClassName" (.model.build.priorityClassName | default .model.priorityClassName) }}
  {{- include "conch.pod.placement" (dict "of" (merge $priority .model)) | nindent 2 }}
  restartPolicy: Never
  containers:
    - name: {{ $compiles | ternary "build" "download" }}
      {{- include "conch.container.image" (dict "root" .root "image" $image) | nindent 6 }}
      command:
        {{- include "conch.build.command" . | nindent 8 }}
      env:
        {{- include "conch.writable.env" . | nindent 8 }}
        - name: HF_HOME
          value: /models/hub
        {{- with .root.Values.huggingface.existingSecret }}
        - name: HF_TOKEN_PATH
          value: /etc/conch/huggingface/{{ $.root.Values.huggingface.key }}
        {{- end }}
        {{- with .model.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      resources:
        {{- include "conch.build.resources" . | nindent 8 }}
      securityContext:
        {{- toYaml .root.Values.containerSecurityContext | nindent 8 }}
      volumeMounts:
        {{- include "conch.writable.mounts" . | nindent 8 }}
        {{- include "conch.model.mounts" . | nindent 8 }}
        - name: shared-memory
          mountPath: /dev/shm
        {{- with .root.Values.huggingface.existingSecret }}
        - name: huggingface
          mountPath: /etc/conch/huggingface
          readOnly: true
        {{- end }}
  volumes:
    {{- include "conch.model.volumes" . | nindent 4 }}
    - name: shared-memory
      emptyDir:
        medium: Memory
        sizeLimit: {{ .model.shmSize }}
    {{- with .root.Values.huggingface.existingSecret }}
    - name: huggingface
      secret:
        secretName: {{ . | quote }}
    {{- end }}
{{- end -}}
