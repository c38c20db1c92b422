{{- /* The programs, and what differs between them: the ports, by default; which servers they connect to; the setting with
the name of a pod; the settings that are files of the ConfigMap files. */ -}}
{{- define "tallyroll.programs" }}
ingest: { port: 8082, connects: [nats, redis], name: INGEST_WORKER, files: { INGEST_RULES: rules.yml } }
query: { port: 8080, serves: http, connects: [nats, redis], files: { QUERY_LIMITS_FILE: limits.yml, QUERY_TOKENS_FILE: tokens.yml } }
collect: { port: 8081, serves: http, connects: [nats], files: { COLLECT_TOKENS_FILE: tokens.yml } }
promql: { port: 9091, serves: http, connects: [redis], files: { PROMQL_TOKENS_FILE: tokens.yml } }
rls: { port: 8083, metrics: 8084, serves: grpc, connects: [nats, redis], files: { RLS_LIMITS_FILE: limits.yml } }
watch: { port: 9092, connects: [nats, redis, targets], name: WATCH_WORKER, files: { WATCH_FILE: watch.yml, WATCH_LIMITS_FILE: limits.yml } }
{{- end }}

{{- /* The labels of one component's pods. */ -}}
{{- define "tallyroll.labels" -}}
{ app.kubernetes.io/name: tallyroll, app.kubernetes.io/instance: {{ .root.Release.Name | quote }}, app.kubernetes.io/component: {{ .name }} }
{{- end }}

{{- /* What pods and containers may do. fsGroup is of the volumes of try. */ -}}
{{- define "tallyroll.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  { runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: { type: RuntimeDefault } }
{{- end }}
{{- define "tallyroll.locked" -}}
{ allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: { drop: [ALL] } }
{{- end }}

{{- /* The files that programs read again, by name; a missing one is empty. */ -}}
{{- define "tallyroll.files" -}}
{{- $try := ternary .Values.try dict .Values.try.enabled }}
{{- with .Values.limits | default (get $try "limits") }}
limits.yml: {{ dict "limits" . | toYaml | quote }}
{{- end }}
{{- with .Values.tokens }}
tokens.yml: {{ dict "tokens" . | toYaml | quote }}
{{- end }}
{{- with .Values.ingest.rules }}
rules.yml: {{ toYaml . | quote }}
{{- end }}
{{- with .Values.watch.file | default (get $try "watch") }}
watch.yml: {{ toYaml . | quote }}
{{- end }}
{{- end }}

{{- /* All settings that the programs share. */ -}}
{{- define "tallyroll.settings" -}}
{{- $settings := dict }}
{{- range $setting, $key := .Values.secret.files }}
{{- $_ := set $settings $setting (print "/etc/tallyroll/" $key) }}
{{- end }}
{{- range $setting, $value := .Values.settings }}{{ $_ := set $settings $setting $value }}{{ end }}
{{- range $server, $inside := dict "NATS" "nats://%s-nats:4222" "Redis" "redis://%s-redis:6379/0" }}
{{- $url := print (upper $server) "_URL" }}
{{- $value := (index $.Values (lower $server)).url }}
{{- $given := coalesce $value (get $settings $url) (get $settings (print $url "_FILE")) }}
{{- if and $.Values.try.enabled $given }}
{{- fail (printf "try.enabled brings a %s: remove %s.url and %s, or try.enabled" $server (lower $server) $url) }}
{{- else if not (or $.Values.try.enabled $given) }}
{{- fail (printf "no %s: set %s.url, %s_FILE in secret.files, or try.enabled" $server (lower $server) $url) }}
{{- end }}
{{- with ternary (printf $inside $.Release.Name) $value $.Values.try.enabled }}
{{- if not (hasKey $settings $url) }}{{ $_ := set $settings $url . }}{{ end }}
{{- end }}
{{- end }}
{{- range $setting, $value := $settings }}
{{ $setting }}: {{ include "tallyroll.text" $value }}
{{- end }}
{{- end }}

{{- /* A value of a setting as quoted text: numbers of YAML are floating-point numbers, which print 10000000 as 1e+07. */ -}}
{{- define "tallyroll.text" -}}
{{ ternary . (toJson .) (kindIs "string" .) | quote }}
{{- end }}

{{- /* What is rendered of the program .name, from its settings: .env has those that are not in the ConfigMap settings,
and .all has both. Ports follow the addresses, and what they serve follows the certificates. */ -}}
{{- define "tallyroll.plan" }}
{{- $values := index .root.Values .name }}
{{- $program := get (include "tallyroll.programs" . | fromYaml) .name }}
{{- $setting := print (upper .name) "_" }}
{{- $common := include "tallyroll.settings" .root | fromYaml }}
{{- $files := include "tallyroll.files" .root | fromYaml }}
{{- $env := dict (print $setting "ADDR") (print "0.0.0.0:" $program.port) }}
{{- with get $program "metrics" }}{{ $_ := set $env (print $setting "METRICS_ADDR") (print "0.0.0.0:" .) }}{{ end }}
{{- range $name, $file := get $program "files" | default dict }}
{{- if hasKey $files $file }}{{ $_ := set $env $name (print "/etc/tallyroll-files/" $file) }}{{ end }}
{{- end }}
{{- with dig "ingress" "host" "" $values }}{{ $_ := set $env (print $setting "HOSTS") . }}{{ end }}
{{- if gt (dig "partitions" 1 $values | int) 1 }}{{ $_ := set $env "INGEST_PARTITIONS" $values.partitions }}{{ end }}
{{- $collect := .root.Values.collect }}
{{- with and (eq .name "ingest") $collect.enabled (get $collect.settings "COLLECT_BEACON_PREFIX") }}
{{- $_ := set $env "INGEST_MAX_NAMES" (print . "=10000") }}
{{- end }}
{{- range $name, $_ := $common }}{{ $_ := unset $env $name }}{{ end }}
{{- range $name, $value := $values.settings }}{{ $_ := set $env $name $value }}{{ end }}
{{- $all := deepCopy $common }}
{{- range $name, $value := $env }}{{ $_ := set $all $name (toString $value) }}{{ end }}
{{- $serves := get $program "serves" | default "http" }}
{{- if and (get $all (print $setting "TLS_CERT")) (eq $serves "http") }}{{ $serves = "https" }}{{ end }}
{{- $ports := dict }}
{{- range $name, $suffix := dict $serves "ADDR" "metrics" "METRICS_ADDR" }}
{{- with get $all (print $setting $suffix) }}
{{- if not (regexMatch `^(0\.0\.0\.0|\[::\])?:[0-9]+$` .) }}
{{- fail (printf "%s%s is %q: must be :PORT, because probes ask the address of the pod" $setting $suffix .) }}
{{- end }}
{{- $_ := set $ports $name (regexFind `[0-9]+$` . | int) }}
{{- end }}
{{- end }}
{{- $tokens := get $all (print $setting "TOKENS_FILE") }}
{{- if ne .name "collect" }}{{ $tokens = or $tokens (get $all (print $setting "TOKENS")) }}{{ end }}
{{- $authority := get $all (print $setting "TLS_CLIENT_CA") }}
{{- $asked := ternary "metrics" $serves (hasKey $ports "metrics") }}
{{- if and $authority (eq $asked "https") }}
{{- fail (printf "%sTLS_CLIENT_CA needs %sMETRICS_ADDR, such as :9100: probes have no certificate" $setting $setting) }}
{{- end }}
{{- $guard := ternary "tokens" (ternary "client certificates" "" (not (empty $authority))) (not (empty $tokens)) }}
{{- $runs := and $values.enabled (or (ne .name "watch") (not (empty (get $all "WATCH_FILE")))) }}
{{- dict "env" $env "all" $all "serves" $serves "ports" $ports "asked" $asked "guard" $guard "runs" $runs | toYaml }}
{{- end }}

{{- /* The port of each URL in .urls, as JSON; .port if it names none. Sentinels lead to a Redis on its usual port. */ -}}
{{- define "tallyroll.ports" }}
{{- $ports := list }}
{{- $schemes := dict "http" 80 "https" 443 "ws" 80 "wss" 443 "redis+sentinel" 26379 "rediss+sentinel" 26379 }}
{{- range $url := .urls }}
{{- $default := dig (regexFind `^[a-z+]+` $url) $.port $schemes }}
{{- range prepend (regexFindAll `[?&]addr=[^&]+` $url -1) $url }}
{{- $host := regexReplaceAll `^([a-z+]+://|[?&]addr=)?([^/?]*@)?([^/?]*).*` . "${3}" | replace "%3A" ":" }}
{{- $ports = append $ports (regexFind `:[0-9]+$` $host | trimPrefix ":" | default $default | int) }}
{{- end }}
{{- if contains "+sentinel" $url }}{{ $ports = append $ports 6379 }}{{ end }}
{{- end }}
{{- toJson $ports }}
{{- end }}

{{- /* The ports that a program with .all its settings connects to, as JSON: those of the URLs of its servers, and those
in networkPolicy. */ -}}
{{- define "tallyroll.egress" }}
{{- $ports := list }}
{{- range $server := .connects }}
{{- $urls := compact (splitList "," (get $.all (print (upper $server) "_URL"))) }}
{{- if get $.all (print (upper $server) "_URL_FILE") }}{{ $urls = list "in a file" }}{{ end }}
{{- if eq $server "targets" }}
{{- $watch := get (include "tallyroll.files" $.root | fromYaml) "watch.yml" | default "{}" | fromYaml }}
{{- range dig "targets" dict $watch }}
{{- $urls = concat $urls (compact (list (get . "webhook") (get . "alertmanager"))) }}
{{- end }}
{{- end }}
{{- $port := get (dict "nats" 4222 "redis" 6379) $server }}
{{- $found := include "tallyroll.ports" (dict "urls" $urls "port" $port) | fromJsonArray }}
{{- range concat $found (get $.root.Values.networkPolicy.ports $server) }}{{ $ports = append $ports (int .) }}{{ end }}
{{- end }}
{{- toJson (uniq $ports) }}
{{- end }}

{{- /* Renders the objects in .yaml, each with its short name: with the release in front of the name, labels, and the
changes in values.objects, each of which must be of one of them. merge replaces fields; of patch, the parent of a list
must be a mapping, as everywhere in Kubernetes. */ -}}
{{- define "tallyroll.objects" }}
{{- $root := .root }}
{{- $rendered := dict }}
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
{{- $_ := set $object.metadata "labels" (merge $labels (get $object.metadata "labels" | default dict)) }}
{{- range list $object.kind (print $object.kind "/" $name) }}
{{- $_ := set $rendered . true }}
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
{{- range $name, $_ := $root.Values.objects }}
{{- if not (hasKey $rendered $name) }}
{{- $names := keys $rendered | sortAlpha | join ", " }}
{{- fail (printf "objects: %s is not rendered with these values: must be one of %s" $name $names) }}
{{- end }}
{{- end }}
{{- end }}
