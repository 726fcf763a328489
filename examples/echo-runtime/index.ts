import { setTimeout } from 'node:timers/promises'
import { errorTable } from 'agent-orc/kernel'
import { defineRuntime } from 'agent-orc/contracts/runtime'

const errors = errorTable('echo', {
  invalidState: { status: 400, message: 'This is not a state bundle of the echo runtime.' },
})

/** Says every prompt back, word by word, and recalls what it was told. A profile uses it with `runtime: echo`. */
export default defineRuntime({
  name: 'echo',
  errors,
  async create() {
    // What each session was told. A runtime for production bounds this.
    const sessions = new Map<string, string[]>()
    return {
      contract: 'runtime/1',

      // Yield events until the run is over, the last one a `result` or `error`. Stop soon after `signal` aborts.
      async *run({ sessionId, prompt }, signal) {
        const told = sessions.get(sessionId) ?? []
        sessions.set(sessionId, [...told, prompt])
        const answer = prompt === 'recall' ? `You told me: ${told.join(', ')}` : `You said: ${prompt}`
        for (const word of answer.match(/\S+\s*/g) ?? []) {
          if (signal.aborted) return
          yield { type: 'assistant', text: word, delta: true }
        }
        if (prompt === 'wait') await setTimeout(600_000, undefined, { signal })
        yield { type: 'result', text: answer, finishReason: 'stop' }
      },

      // The next three are optional: they let a session move to another host.
      async exportState(sessionId) {
        const told = sessions.get(sessionId)
        return told && { bytes: Buffer.from(JSON.stringify(told)), contentType: 'application/json' }
      },
      async hydrate(sessionId, { bytes }) {
        sessions.set(sessionId, parse(Buffer.from(bytes).toString('utf8')))
      },
      async forget(sessionId) {
        sessions.delete(sessionId)
      },
    }
  },
})

/** Refuses a corrupt bundle before anything is changed. */
function parse(text: string): string[] {
  try {
    const told: unknown = JSON.parse(text)
    if (Array.isArray(told) && told.every((item) => typeof item === 'string')) return told
  } catch {}
  throw errors.invalidState()
}
