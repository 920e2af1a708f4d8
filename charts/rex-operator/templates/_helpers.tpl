{{- define "rex-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Prefix of all names; leaves room for the longest suffix. */}}
{{- define "rex-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" }}
{{- else if contains (include "rex-operator.name" .) .Release.Name }}
{{- .Release.Name | trunc 45 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "rex-operator.name" .) | trunc 45 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Cluster-wide objects carry the namespace, so that two releases of one name do not clash. */}}
{{- define "rex-operator.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "rex-operator.fullname" .) | trunc 200 | trimSuffix "-" }}
{{- end }}

{{- define "rex-operator.channel" -}}
{{ include "rex-operator.fullname" . }}-channel
{{- end }}

{{- define "rex-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "rex-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "rex-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "rex-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rex-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "rex-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "rex-operator.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* Namespaces whose jobs are run, as a comma-separated list; empty for all. */}}
{{- define "rex-operator.watched" -}}
{{- if not .Values.watch.clusterWide }}
{{- join "," (default (list .Release.Namespace) .Values.watch.namespaces) }}
{{- end }}
{{- end }}

{{/* What the operator may do where jobs live. */}}
{{- define "rex-operator.jobRules" -}}
- {apiGroups: [rex.dev], resources: [rexjobs], verbs: [get, list, watch, delete]}
- {apiGroups: [rex.dev], resources: [rexjobs/status], verbs: [patch]}
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [configmaps, services], verbs: [get, create, patch]}
- {apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [create, patch]}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [create, patch]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create]}
{{- end }}
