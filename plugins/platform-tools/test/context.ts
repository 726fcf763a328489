import type { ToolContext } from '#contracts/tools'

export const context = (signal = new AbortController().signal): ToolContext => ({
  tenantId: 'acme',
  sessionId: 's1',
  profileName: 'p',
  runId: 'r1',
  depth: 0,
  signal,
})
