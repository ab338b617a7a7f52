{{- define "cprjob.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{- define "cprjob.fullname" -}}
{{- $name := include "cprjob.name" . }}
{{- $own := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- .Values.fullnameOverride | default $own | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "cprjob.selectorLabels" -}}
app.kubernetes.io/name: {{ include "cprjob.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "cprjob.commonLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: cprjob
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "cprjob.labels" -}}
{{ include "cprjob.selectorLabels" . }}
{{ include "cprjob.commonLabels" . }}
{{- end }}

{{- define "cprjob.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "cprjob.fullname" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "cprjob.image" -}}
{{- with .Values.image }}
{{- with .registry }}{{ . }}/{{ end }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "cprjob.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "cprjob.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "cprjob.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "cprjob.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "cprjob.issuer" -}}
{{- with .Values.certificates.issuerRef }}{{ if .name }}{{ .kind }}.{{ .group }}/{{ .name }}{{ end }}{{ end }}
{{- end }}

{{- /* What the operator may do where it serves jobs. It never reads Secrets, and knows no nodes. */}}
{{- define "cprjob.rules" -}}
- apiGroups: [cprjob.io]
  resources: [cprjobs]
  verbs: [get, list, watch, patch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [cprjob.io]
  resources: [cprjobs/status]
  verbs: [update, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch, delete]
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch, list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- if or .Values.certManager.enabled .Values.certificates.issuerRef.name }}
- apiGroups: [cert-manager.io]
  resources: [certificaterequests]
  verbs: [get, create, delete]
{{- end }}
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- end }}
