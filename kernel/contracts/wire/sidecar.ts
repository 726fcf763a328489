/** Names of the sidecar's wire API. Specification 4.23; `SVC` is `Agent-Orc`. */
export const workerInstanceHeader = 'x-agent-orc-worker-instance'
export const workerInflightHeader = 'x-agent-orc-worker-inflight'
export const workerProtocolHeader = 'x-agent-orc-worker-protocol'
export const runtimeSessionIdHeader = 'x-runtime-session-id'
