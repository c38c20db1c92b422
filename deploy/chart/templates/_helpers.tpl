{{- /* The programs, and what differs between them: where they listen, by setting; which servers they connect to; the
setting with the name of a pod; the settings that are files of the ConfigMap files. */ -}}
{{- define "tallyroll.programs" }}
ingest: { listens: { INGEST_ADDR: { http: 8082 } }, connects: [nats, redis], name: INGEST_WORKER, files: { INGEST_RULES: rules.yml } }
query: { listens: { QUERY_ADDR: { http: 8080 } }, serves: http, connects: [nats, redis], files: { QUERY_LIMITS_FILE: limits.yml } }
collect: { listens: { COLLECT_ADDR: { http: 8081 } }, serves: http, connects: [nats] }
promql: { listens: { PROMQL_ADDR: { http: 9091 } }, serves: http, connects: [redis] }
rls: { listens: { RLS_ADDR: { grpc: 8083 }, RLS_METRICS_ADDR: { http: 8084 } }, serves: grpc, connects: [nats, redis], files: { RLS_LIMITS_FILE: limits.yml } }
watch: { listens: { WATCH_ADDR: { http: 9092 } }, connects: [nats, redis, targets], name: WATCH_WORKER, files: { WATCH_FILE: watch.yml, WATCH_LIMITS_FILE: limits.yml } }
{{- end }}

{{- /* The labels of one component's pods. */ -}}
{{- define "tallyroll.labels" -}}
{ app.kubernetes.io/name: tallyroll, app.kubernetes.io/instance: {{ .root.Release.Name | quote }}, app.kubernetes.io/component: {{ .name }} }
{{- end }}

{{- /* The files that programs read again, by name; a missing one is empty. */ -}}
{{- define "tallyroll.files" -}}
{{- with .Values.limits }}
limits.yml: {{ dict "limits" . | toYaml | quote }}
{{- end }}
{{- with .Values.ingest.rules }}
rules.yml: {{ toYaml . | quote }}
{{- end }}
watch.yml: {{ .Values.watch.file | toYaml | quote }}
{{- end }}

{{- /* All settings that the programs share. */ -}}
{{- define "tallyroll.settings" -}}
{{- $settings := dict }}
{{- range $server, $url := dict "NATS" "nats://%s-nats:4222" "REDIS" "redis://%s-redis:6379/0" }}
{{- $given := (index $.Values (lower $server)).url }}
{{- with ternary (printf $url $.Release.Name) $given $.Values.try.enabled }}
{{- $_ := set $settings (print $server "_URL") . }}
{{- end }}
{{- end }}
{{- range $setting, $key := .Values.secret.files }}
{{- $_ := set $settings $setting (print "/etc/tallyroll/" $key) }}
{{- end }}
{{- $settings = merge dict .Values.settings $settings }}
{{- if not (or (hasKey $settings "NATS_URL") (hasKey $settings "NATS_URL_FILE")) }}
{{- fail "no NATS: set nats.url, NATS_URL_FILE in secret.files, or try.enabled" }}
{{- end }}
{{- if not (or (hasKey $settings "REDIS_URL") (hasKey $settings "REDIS_URL_FILE")) }}
{{- fail "no Redis: set redis.url, REDIS_URL_FILE in secret.files, or try.enabled" }}
{{- end }}
{{- range $setting, $value := $settings }}
{{ $setting }}: {{ include "tallyroll.text" $value }}
{{- end }}
{{- end }}

{{- /* A value of a setting as quoted text: numbers of YAML are floating-point numbers, which print 10000000 as 1e+07. */ -}}
{{- define "tallyroll.text" -}}
{{ ternary . (toJson .) (kindIs "string" .) | quote }}
{{- end }}

{{- /* Renders the objects in .yaml, each with its short name: with the release in front of the name, labels, and the
changes in values.objects. merge replaces fields; of patch, the parent of a list must be a mapping, as everywhere in
Kubernetes. */ -}}
{{- define "tallyroll.objects" }}
{{- $root := .root }}
{{- range splitList "\n---\n" .yaml }}
{{- $object := fromYaml . }}
{{- with get $object "Error" }}{{ fail . }}{{ end }}
{{- $name := $object.metadata.name }}
{{- $labels := include "tallyroll.labels" (dict "root" $root "name" $name) | fromYaml }}
{{- $_ := set $labels "app.kubernetes.io/version" $root.Chart.AppVersion }}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $root.Release.Service }}
{{- $_ := set $labels "helm.sh/chart" (print $root.Chart.Name "-" $root.Chart.Version) }}
{{- $_ := set $object.metadata "name" (print $root.Release.Name "-" $name) }}
{{- $_ := set $object.metadata "namespace" $root.Release.Namespace }}
{{- $_ := set $object.metadata "labels" $labels }}
{{- range list $object.kind (print $object.kind "/" $name) }}
{{- $changes := get $root.Values.objects . | default dict }}
{{- $_ := mergeOverwrite $object (deepCopy (get $changes "merge" | default dict)) }}
{{- range get $changes "patch" | default list }}
{{- $node := $object }}{{ $parent := dict }}{{ $field := "" }}
{{- $path := splitList "/" (trimPrefix "/" .path) }}
{{- range initial $path }}
{{- $key := . | replace "~1" "/" | replace "~0" "~" }}
{{- $next := "" }}
{{- if kindIs "slice" $node }}{{ $next = index $node (int $key) }}{{ end }}
{{- if kindIs "map" $node }}{{ $next = get $node $key }}{{ end }}
{{- $parent = $node }}{{ $field = $key }}{{ $node = $next }}
{{- end }}
{{- $key := last $path | replace "~1" "/" | replace "~0" "~" }}
{{- if kindIs "slice" $node }}
{{- $at := int $key }}{{ if eq $key "-" }}{{ $at = len $node }}{{ end }}
{{- $after := slice $node (ternary $at (int (add $at 1)) (eq .op "add")) }}
{{- $new := list }}{{ if ne .op "remove" }}{{ $new = list .value }}{{ end }}
{{- $_ := set $parent $field (concat (slice $node 0 $at) $new $after) }}
{{- else if not (kindIs "map" $node) }}
{{- fail (printf "objects: %s of %s/%s: nothing is there" .path $object.kind $name) }}
{{- else if eq .op "remove" }}{{ $_ := unset $node $key }}
{{- else }}{{ $_ := set $node $key .value }}
{{- end }}
{{- end }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
