{{- /*
Gives each value that is missing its default. Helm removes a value that is set to null, and `helm upgrade --reuse-values` has
only the values of the older chart. files/defaults.json has the defaults by path.
*/ -}}
{{- define "conch.complete" -}}
{{- range $path, $default := .Files.Get "files/defaults.json" | fromJson -}}
{{- $node := $.Values -}}
{{- $names := splitList "." $path -}}
{{- range initial $names -}}
{{- if kindIs "invalid" (index $node .) }}{{ $_ := set $node . dict }}{{ end -}}
{{- $node = index $node . -}}
{{- end -}}
{{- if kindIs "invalid" (index $node (last $names)) }}{{ $_ := set $node (last $names) $default }}{{ end -}}
{{- end -}}
{{- end -}}
