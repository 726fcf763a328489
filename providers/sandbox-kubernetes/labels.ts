import { createHash } from 'node:crypto'
import type { LaunchOrder } from '#contracts/sandbox'

/** What a NetworkPolicy selects worker pods by. */
export const workerLabels = {
  'app.kubernetes.io/part-of': 'agent-orc',
  'app.kubernetes.io/component': 'sandbox-worker',
}

export const ownerLabel = 'agent-orc/owner'
const tenantLabel = 'agent-orc/tenant'
const sessionLabel = 'agent-orc/session'

const labelForm = /^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$/
const digestForm = /^sha256-/

/** A value that labels take, different for different texts: their digest where the text itself does not fit. */
export const labelValue = (text: string): string =>
  labelForm.test(text) && !digestForm.test(text)
    ? text
    : `sha256-${createHash('sha256').update(text).digest('hex').slice(0, 40)}`

export const ownerSelector = (owner: string) => ({ ...workerLabels, [ownerLabel]: labelValue(owner) })

export const labelsOf = ({ owner, tenantId, sessionId }: LaunchOrder): Record<string, string> => ({
  ...ownerSelector(owner),
  [tenantLabel]: labelValue(tenantId),
  [sessionLabel]: labelValue(sessionId),
})
