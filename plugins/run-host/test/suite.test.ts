import { testRuntime, type RuntimeScript } from '#testing'
import { AppError } from '#kernel'
import type { Runtime } from '#contracts/runtime'
import { aborted, hostOf, result, says, scripted } from './support.ts'

/** A runtime that says its prompts back and remembers them. */
function parrot(): Runtime {
  const heard = new Map<string, string[]>()
  return scripted(
    async function* (prompt, signal, sessionId) {
      const all = [...(heard.get(sessionId) ?? []), prompt]
      heard.set(sessionId, all)
      yield says('I heard ')
      if (prompt === 'hang') await aborted(signal)
      if (prompt === 'tool') {
        yield { type: 'tool_call', id: '1', name: 'x', arguments: {} }
        yield { type: 'tool_result', id: '1', name: 'x', ok: true, content: 'y' }
      }
      yield says(all.join(', '))
      yield result(`I heard ${all.join(', ')}`)
    },
    {
      async exportState(sessionId) {
        const all = heard.get(sessionId)
        return (
          all && { bytes: Buffer.from(JSON.stringify(all)), contentType: 'application/json', runtimeSessionId: 'rs' }
        )
      },
      async hydrate(sessionId, { bytes }) {
        let value: unknown
        try {
          value = JSON.parse(Buffer.from(bytes).toString('utf8'))
        } catch {
          throw new AppError('invalid_state', 400)
        }
        if (!Array.isArray(value)) throw new AppError('invalid_state', 400)
        heard.set(sessionId, value)
      },
    },
  )
}

const script: RuntimeScript = {
  say: (word) => word,
  hang: 'hang',
  tool: 'tool',
  memory: { tell: (word) => word, ask: 'what?' },
}

// The same promises in process and over the wire.
testRuntime('local', async (t) => (await hostOf(t, { local: parrot() })).link, script)
testRuntime(
  'wire',
  async (t) => (await hostOf(t, { wire: parrot() }, { listen: true })).kernel.urls['sidecar']!,
  script,
)
