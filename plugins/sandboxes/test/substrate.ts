import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent } from '#contracts/run-event'
import { type LaunchOrder, sandboxGone, type SandboxProvider, type SandboxState } from '#contracts/sandbox'
import { stateRevHeader, workerPaths, workerVariables } from '#contracts/wire/worker'
import { type ScriptedWorker, startScriptedWorker } from '#testing'

/** One sandbox of the substrate, with the worker that polls in it. */
export interface Box {
  readonly id: string
  readonly order: LaunchOrder
  state: SandboxState
  worker: ScriptedWorker | undefined
  /** The orders with which this sandbox was resumed. */
  readonly resumed: LaunchOrder[]
}

/** A substrate in memory: its workers poll a real hub, and remember what they are told. */
export interface Substrate {
  readonly provider: SandboxProvider
  readonly boxes: Box[]
  /** The sandboxes that are not gone. */
  live(): Box[]
  /** A promise that each launch waits for. */
  gate: Promise<unknown> | undefined
  /** The error with which launches reject. */
  failure: Error | undefined
  /** While true, the provider does not answer state requests. */
  away: boolean
  /** While true, workers that are started never call back. */
  mute: boolean
  /** How often the state of a sandbox was requested. */
  asked: number
  readonly calls: string[]
  /** The bytes of each sandbox's files, by its id. Undefined when the provider cannot count files. */
  files: Map<string, number> | undefined
  /** The worker and its sandbox are gone, as after kill -9. */
  crash(box: Box): void
}

export function createSubstrate(t: Pick<TestContext, 'after'>): Substrate {
  const substrate: Substrate = {
    boxes: [],
    live: () => substrate.boxes.filter(({ state }) => state !== 'gone'),
    gate: undefined,
    failure: undefined,
    away: false,
    mute: false,
    asked: 0,
    calls: [],
    files: undefined,
    crash(box) {
      box.state = 'gone'
      box.worker?.stop()
    },
    provider: {
      contract: 'sandbox/1',
      async launch(order, signal) {
        substrate.calls.push('launch')
        reached()
        await substrate.gate
        signal.throwIfAborted()
        if (substrate.failure) throw substrate.failure
        const id = `box-${randomBytes(4).toString('hex')}`
        const worker = substrate.mute ? undefined : startWorker(t, order)
        substrate.boxes.push({ id, order, state: 'running', worker, resumed: [] })
        return { sandboxId: id }
      },
      async status(id) {
        substrate.asked++
        reached()
        return find(id)?.state ?? 'gone'
      },
      async pause(id) {
        substrate.calls.push(`pause ${id}`)
        const box = there(id)
        box.state = 'paused'
        box.worker?.stop()
      },
      async resume(id, order) {
        substrate.calls.push(`resume ${id}`)
        const box = there(id)
        box.resumed.push(order)
        box.state = 'running'
        if (!substrate.mute) box.worker = startWorker(t, order)
      },
      async destroy(id) {
        substrate.calls.push(`destroy ${id}`)
        reached()
        const box = find(id)
        if (box) substrate.crash(box)
      },
      async list(owner) {
        reached()
        return substrate
          .live()
          .filter(({ order }) => order.owner === owner)
          .map(({ id }) => id)
      },
    },
  }
  // A provider that cannot tell has no such method.
  Object.defineProperty(substrate.provider, 'diskUsage', {
    get: () => substrate.files && (async () => substrate.files),
  })
  const reached = (): void => {
    if (substrate.away) throw new Error('the substrate is away')
  }
  const find = (id: string): Box | undefined => substrate.boxes.find((box) => box.id === id)
  const there = (id: string): Box => {
    reached()
    const box = find(id)
    if (!box || box.state === 'gone') throw sandboxGone()
    return box
  }
  return substrate
}

/** `recall` answers with all prompts before it; anything else is remembered. `wait` runs until it is stopped. */
function startWorker(t: Pick<TestContext, 'after'>, order: LaunchOrder): ScriptedWorker {
  const told: string[] = []
  let restoredFor: string | undefined
  let rev = 0
  const state = (): string => workerPaths(worker.sessionId).state
  const restore = async (): Promise<void> => {
    if (restoredFor === worker.sessionId) return
    restoredFor = worker.sessionId
    const answer = await worker.call(state())
    if (!answer.ok) return void (await answer.arrayBuffer())
    rev = Number(answer.headers.get(stateRevHeader) ?? 0)
    told.push(...((await answer.json()) as string[]))
  }
  const save = async (): Promise<void> => {
    const headers = { 'content-type': 'application/json', [stateRevHeader]: String(++rev) }
    await worker.call(state(), { method: 'PUT', body: JSON.stringify(told), headers })
  }
  async function* run({ prompt, resume }: RunEnvelope, signal: AbortSignal): AsyncGenerator<RuntimeEvent> {
    await restore()
    if (resume && told.length === 0) {
      return yield { type: 'error', code: 'session_state_missing', message: 'It is not here.' }
    }
    yield { type: 'assistant', text: prompt, delta: true }
    if (prompt === 'wait') await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
    const text = prompt === 'recall' ? told.join(', ') : 'ok'
    if (prompt !== 'recall') told.push(prompt)
    await save()
    yield { type: 'result', text, finishReason: 'stop' }
  }
  const identity = {
    url: order.runnerUrl,
    sessionId: order.env[workerVariables.sessionId]!,
    token: order.env[workerVariables.token]!,
  }
  const worker: ScriptedWorker = startScriptedWorker(t, identity, {
    run,
    tool: async (name, input) => ({ ok: true, content: JSON.stringify({ name, input, session: worker.sessionId }) }),
    state: () => ({ bytes: Buffer.from(JSON.stringify(told)), contentType: 'application/json' }),
  })
  return worker
}
