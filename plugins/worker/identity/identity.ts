import { open, readFile } from 'node:fs/promises'
import { capability } from '#kernel'
import type { ModelEgress, ModelFetch } from '#contracts/model'
import { workerPaths } from '#contracts/wire/worker'

/** Whose worker this process is at the moment. */
export interface WorkerIdentity {
  /** The runner as this process reaches it, without a slash at its end. */
  readonly runnerUrl: string
  readonly sessionId: string
  readonly token: string
  /** Called when the runner sent a newer token. */
  renew(token: string): void
  /** Called when a worker of a warm pool gets its session. */
  bind(sessionId: string, token: string): void
}
export const WorkerIdentity = capability<WorkerIdentity>('worker.identity')

interface Given {
  readonly runnerUrl: string
  readonly sessionId: string
  readonly token: string
}

export function createIdentity(given: Given): WorkerIdentity {
  const runnerUrl = given.runnerUrl.replace(/\/+$/, '')
  let { sessionId, token } = given
  return {
    runnerUrl,
    get sessionId() {
      return sessionId
    },
    get token() {
      return token
    },
    renew(newer) {
      token = newer
    },
    bind(session, newer) {
      sessionId = session
      token = newer
    },
  }
}

/** Sends model calls through the runner, with the present token. */
export function createModelEgress(identity: WorkerIdentity, fetch: ModelFetch): ModelEgress {
  const root = (): string => identity.runnerUrl + workerPaths(identity.sessionId).models('')
  // Model providers keep the address that they were set up with, even after a warm worker got another session id.
  const first = root()
  const present = (url: string): string => (url.startsWith(first) ? root() + url.slice(first.length) : url)
  return {
    baseUrl: (provider) => root() + encodeURIComponent(provider),
    token: () => identity.token,
    fetch(input, init) {
      const headers = new Headers(init?.headers)
      headers.set('authorization', `Bearer ${identity.token}`)
      const url = present(input instanceof Request ? input.url : String(input))
      return fetch(url, { ...init, headers: Object.fromEntries(headers) })
    },
  }
}

/**
 * Blanks a variable in the environment that this process was started with. The kernel shows that to every process of the same
 * user, in /proc/PID/environ, and the agent's own commands are such: they should not find the token by looking around.
 * Resolves to false where the system has no such place, or does not let it be changed.
 */
export async function blankInEnvironment(name: string): Promise<boolean> {
  try {
    const [shown, stat] = await Promise.all([readFile('/proc/self/environ'), readFile('/proc/self/stat', 'utf8')])
    // proc(5): env_start is field 50; the second one is a name in parentheses that may hold anything.
    const start = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[50 - 3])
    const at = `\0${shown.toString('latin1')}`.indexOf(`\0${name}=`)
    if (at < 0) return true
    const from = at + name.length + 1
    const memory = await open('/proc/self/mem', 'r+')
    try {
      await memory.write(Buffer.alloc(shown.indexOf(0, from) - from), 0, undefined, start + from)
    } finally {
      await memory.close()
    }
    return true
  } catch {
    return false
  }
}
