-- Argo CD health of a QuantizedModel: resource.customizations.health.halfbyte.dev_QuantizedModel in argocd-cm.
local status = obj.status
if obj.spec ~= nil and obj.spec.suspend == true then
  return {status = "Suspended", message = "spec.suspend is true"}
end
if status == nil or status.conditions == nil then
  return {status = "Progressing", message = "Waiting for the operator"}
end
-- Conditions of an older spec say nothing about this one.
if obj.metadata.generation ~= nil and status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "Waiting for the operator to see the newest spec"}
end

local byType = {}
for _, condition in ipairs(status.conditions) do
  byType[condition.type] = condition
end

local stalled = byType["Stalled"]
if stalled ~= nil and stalled.status == "True" then
  return {status = "Degraded", message = stalled.message}
end
local ready = byType["Ready"]
if ready == nil then
  return {status = "Progressing", message = "Waiting for the condition Ready"}
end
if ready.status == "True" then
  return {status = "Healthy", message = ready.message}
end
-- Someone has to act, as with any suspended resource: Argo CD shows it so and syncs go on.
if ready.reason == "WaitingForApproval" then
  return {status = "Suspended", message = ready.message}
end
return {status = "Progressing", message = ready.message}
