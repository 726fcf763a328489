import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { type PlatformTool, PlatformTools } from '#contracts/tools'

/** A tool `pay` that posts each of its executions to the URL, with its idempotency key. */
export default definePlugin({
  name: 'counting-tool',
  config: Settings({ url: Type.String() }),
  provides: { tools: PlatformTools },
  async setup({ config }) {
    const pay: PlatformTool = {
      name: 'pay',
      description: 'Pays.',
      inputSchema: { type: 'object', properties: { amount: { type: 'number' } } },
      async execute(input, { idempotencyKey, runId, signal }) {
        const body = JSON.stringify({ ...input, idempotencyKey, runId })
        const response = await fetch(config.url, { method: 'POST', body, signal })
        return { ok: true, content: await response.text() }
      },
    }
    return { tools: { pay } }
  },
})
