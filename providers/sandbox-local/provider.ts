import { createHash } from 'node:crypto'
import { type LaunchOrder, sandboxGone, type SandboxProvider } from '#contracts/sandbox'
import type { Folders, Home } from './home.ts'

/** The processes of one sandbox. */
export interface LocalSandbox {
  /** The runner's address as the worker sees it. Undefined: `order.runnerUrl`. */
  readonly runnerUrl?: string
  /** Resolves when no process of the sandbox runs any more. Never rejects. */
  readonly ended: Promise<void>
  /** Resolves when all processes of the sandbox are stopped. */
  pause(): Promise<void>
  resume(): Promise<void>
  /** Ends the sandbox. Resolves together with `ended`. */
  end(): Promise<void>
}

/** Resolves when the worker runs. When it rejects, no process is left. */
export type StartSandbox = (order: LaunchOrder, places: SessionPlaces, signal: AbortSignal) => Promise<LocalSandbox>

export interface SessionPlaces {
  /** The same for every sandbox of a session that this process starts. */
  readonly key: string
  folders(uid?: number): Promise<Folders>
}

interface Entry {
  readonly sandboxId: string
  readonly owner: string
  readonly key: string
  readonly sandbox: LocalSandbox
  state: 'running' | 'paused' | 'gone'
}

/**
 * A sandbox provider over processes of this machine, which do not outlive this process. A session has one sandbox at a time. Its files outlive a
 * worker that ended, so that the next worker finds them, and are deleted when the sandbox is destroyed.
 */
export function createProvider(home: Home, start: StartSandbox): SandboxProvider & { stop(): Promise<void> } {
  const entries = new Map<string, Entry>()
  const stopping = new AbortController()
  const inTurn = createTurns()
  const present = (key: string): Entry | undefined => entries.values().find((entry) => entry.key === key)
  /** Changes an existing sandbox, one operation at a time. */
  const changed = (sandboxId: string, change: (entry: Entry) => Promise<void>): Promise<void> => {
    const entry = entries.get(sandboxId)
    if (!entry) return Promise.reject(sandboxGone())
    return inTurn(entry.key, async () => {
      if (entry.state === 'gone') throw sandboxGone()
      await change(entry)
    })
  }
  const destroy = async (sandboxId: string): Promise<void> => {
    const entry = entries.get(sandboxId)
    if (!entry) return
    await inTurn(entry.key, async () => {
      await entry.sandbox.end()
      // A newer sandbox of the session has the files now.
      if (entries.get(sandboxId) !== entry) return
      entries.delete(sandboxId)
      await home.remove(entry.key)
    })
  }
  return {
    contract: 'sandbox/1',
    launch(order, signal) {
      const key = keyOf(order)
      return inTurn(key, async () => {
        const aborted = AbortSignal.any([signal, stopping.signal])
        aborted.throwIfAborted()
        const former = present(key)
        await former?.sandbox.end()
        try {
          const sandbox = await start(order, { key, folders: (uid) => home.folders(key, uid) }, aborted)
          const entry: Entry = { sandboxId: order.name, owner: order.owner, key, sandbox, state: 'running' }
          if (former) entries.delete(former.sandboxId)
          entries.set(order.name, entry)
          void sandbox.ended.then(() => {
            entry.state = 'gone'
          })
          return { sandboxId: order.name, ...(sandbox.runnerUrl ? { runnerUrl: sandbox.runnerUrl } : {}) }
        } catch (error) {
          if (!former) await home.remove(key)
          throw error
        }
      })
    },
    status: async (sandboxId) => entries.get(sandboxId)?.state ?? 'gone',
    pause: (sandboxId) =>
      changed(sandboxId, async (entry) => {
        if (entry.state !== 'paused') await entry.sandbox.pause()
        if (entry.state === 'gone') throw sandboxGone()
        entry.state = 'paused'
      }),
    resume: (sandboxId) =>
      changed(sandboxId, async (entry) => {
        if (entry.state === 'paused') await entry.sandbox.resume()
        if (entry.state === 'gone') throw sandboxGone()
        entry.state = 'running'
      }),
    destroy,
    diskUsage: (sandboxIds) => usageOf(sandboxIds, entries, home),
    list: async (owner) =>
      entries
        .values()
        .filter((entry) => entry.owner === owner && entry.state !== 'gone')
        .map(({ sandboxId }) => sandboxId)
        .toArray(),
    async stop() {
      stopping.abort(new Error('the runner is stopping'))
      await inTurn.idle()
      await Promise.all(entries.keys().map(destroy))
      await home.close()
    },
  }
}

async function usageOf(
  sandboxIds: readonly string[],
  entries: ReadonlyMap<string, Entry>,
  home: Home,
): Promise<ReadonlyMap<string, number>> {
  const known = sandboxIds.flatMap((id) => entries.get(id) ?? [])
  if (known.length === 0) return new Map()
  const used = await home.diskUsage([...new Set(known.map(({ key }) => key))])
  return new Map(known.map(({ sandboxId, key }) => [sandboxId, used.get(key)!]))
}

/** The folder name of a session: short, and valid whatever letters the ids have. */
const keyOf = ({ tenantId, sessionId }: LaunchOrder): string =>
  createHash('sha256')
    .update(JSON.stringify([tenantId, sessionId]))
    .digest('hex')
    .slice(0, 32)

interface Turns {
  <T>(key: string, work: () => Promise<T>): Promise<T>
  /** Resolves when no operation runs or waits. */
  idle(): Promise<void>
}

/** Runs the operations of each key one after the other. */
function createTurns(): Turns {
  const last = new Map<string, Promise<unknown>>()
  const inTurn = <T>(key: string, work: () => Promise<T>): Promise<T> => {
    const mine = (last.get(key) ?? Promise.resolve()).then(work)
    const settled: Promise<unknown> = mine.catch(() => {}).then(() => last.get(key) === settled && last.delete(key))
    last.set(key, settled)
    return mine
  }
  const idle = async (): Promise<void> => {
    while (last.size > 0) await Promise.all(last.values())
  }
  return Object.assign(inTurn, { idle })
}
