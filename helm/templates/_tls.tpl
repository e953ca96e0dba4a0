{{- /* TLS between the frontend and the models' pods; empty without tritonTls.existingSecret. All take root. */ -}}

{{- /*
Options of a client of Triton. With model, the client is in the model's pod: the certificate names the Service, and not
loopback.
*/ -}}
{{- define "conch.tritonTls.connect" -}}
{{- with .root.Values.tritonTls -}}
{{- if .existingSecret }}
- --triton-tls-ca=/etc/conch/triton-tls/ca.crt
{{- if .clientSecret }}
- --triton-tls-cert=/etc/conch/triton-client/tls.crt
- --triton-tls-key=/etc/conch/triton-client/tls.key
{{- end }}
{{- if $.model }}
- --triton-tls-name={{ include "conch.model.host" $ }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* Options of Triton: its certificate, and the authority of clients. */ -}}
{{- define "conch.tritonTls.serve" -}}
{{- with .root.Values.tritonTls -}}
{{- if .existingSecret }}
- --tls-cert=/etc/conch/triton-tls/tls.crt
- --tls-key=/etc/conch/triton-tls/tls.key
{{- if .clientSecret }}
- --tls-client-ca=/etc/conch/triton-client/ca.crt
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "conch.tritonTls.mounts" -}}
{{- with .root.Values.tritonTls -}}
{{- if .existingSecret }}
- name: triton-tls
  mountPath: /etc/conch/triton-tls
  readOnly: true
{{- end }}
{{- if .clientSecret }}
- name: triton-client
  mountPath: /etc/conch/triton-client
  readOnly: true
{{- end }}
{{- end -}}
{{- end -}}

{{- /* With isFrontend the models' private key is omitted. */ -}}
{{- define "conch.tritonTls.volumes" -}}
{{- with .root.Values.tritonTls -}}
{{- if .existingSecret }}
- name: triton-tls
  secret:
    secretName: {{ .existingSecret | quote }}
    {{- if $.isFrontend }}
    items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
{{- end }}
{{- if .clientSecret }}
- name: triton-client
  secret:
    secretName: {{ .clientSecret | quote }}
{{- end }}
{{- end -}}
{{- end -}}
