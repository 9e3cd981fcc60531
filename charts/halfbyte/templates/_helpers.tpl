{{- define "halfbyte.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "halfbyte.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "halfbyte.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of the Deployment, ServiceAccount, Lease, metrics Service and PodDisruptionBudget. */}}
{{- define "halfbyte.operatorName" -}}
{{- printf "%s-operator" (include "halfbyte.fullname" .) -}}
{{- end -}}

{{/* Cluster-scoped names carry the namespace in namespaced mode, where several releases may live in one cluster. */}}
{{- define "halfbyte.clusterScopedName" -}}
{{- $name := include "halfbyte.operatorName" . -}}
{{- ternary (printf "%s-%s" .Release.Namespace $name) $name (gt (len .Values.watchNamespaces) 0) -}}
{{- end -}}

{{- define "halfbyte.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "halfbyte.operatorName" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name an existing ServiceAccount, or set serviceAccount.create=true" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "halfbyte.selectorLabels" -}}
app.kubernetes.io/name: {{ include "halfbyte.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "halfbyte.labels" -}}
{{ include "halfbyte.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Reference of one image. Call with (dict "root" $ "image" .Values.images.x "suffix" ""). */}}
{{- define "halfbyte.image" -}}
{{- $name := printf "%s/%s" (trimSuffix "/" .root.Values.images.registry) .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default (printf "%s%s" .root.Chart.AppVersion .suffix) .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* "true" or "": whether the operator may read nodes. */}}
{{- define "halfbyte.readNodes" -}}
{{- $clusterMode := eq (len .Values.watchNamespaces) 0 -}}
{{- if kindIs "invalid" .Values.rbac.readNodes -}}
{{- ternary "true" "" $clusterMode -}}
{{- else -}}
{{- ternary "true" "" .Values.rbac.readNodes -}}
{{- end -}}
{{- end -}}

{{/* What the operator does in a namespace of models. The same rules in both modes. */}}
{{- define "halfbyte.modelRules" -}}
- apiGroups: [halfbyte.dev]
  resources: [quantizedmodels]
  verbs: [get, list, watch]
- apiGroups: [halfbyte.dev]
  resources: [quantizedmodels/status]
  verbs: [patch]
# Owner references with blockOwnerDeletion are refused without it where OwnerReferencesPermissionEnforcement is on (OpenShift).
- apiGroups: [halfbyte.dev]
  resources: [quantizedmodels/finalizers]
  verbs: [update]
# A server-side apply that creates an object needs create and patch.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [services, persistentvolumeclaims]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
{{- if .Values.rbac.readSecrets }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* What it reads outside the namespaces of models: room on nodes, and whether the CRD is as new as the operator. */}}
{{- define "halfbyte.clusterRules" -}}
{{- if include "halfbyte.readNodes" . -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{ end -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [quantizedmodels.halfbyte.dev]
  verbs: [get]
{{- end -}}

{{/* Contradictions between values that a JSON schema cannot name in words. */}}
{{- define "halfbyte.validate" -}}
{{- if and .Values.metrics.scrapeAnnotations .Values.metrics.serviceMonitor.enabled -}}
{{- fail "metrics.scrapeAnnotations and metrics.serviceMonitor.enabled are both true: every sample would be scraped twice. Set one of them to false." -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled needs the metrics Service: set metrics.enabled=true." -}}
{{- end -}}
{{- end -}}
