import { open, readFile } from 'node:fs/promises'
import { capability } from '#kernel'
import type { ModelEgress, ModelFetch } from '#contracts/model'
import { workerPaths } from '#contracts/wire/worker'

/** The session and the credentials that this process works for at the moment. */
export interface WorkerIdentity {
  /** The runner's address for this process, without a trailing slash. */
  readonly runnerUrl: string
  readonly sessionId: string
  readonly token: string
  /** Called when the runner sent a newer token. */
  renew(token: string): void
  /** Must be called when a warm worker gets its session. */
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
  // Model providers keep the address that they were created with, but a warm worker gets another session id later.
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
 * Overwrites a variable in the environment that this process was started with. The kernel shows that environment in /proc/PID/environ to every
 * process of the same user, such as the agent's commands, which must not find the token there. Resolves to false when the system has no such file, or
 * does not allow the change.
 */
export async function blankInEnvironment(name: string): Promise<boolean> {
  try {
    const [shown, stat] = await Promise.all([readFile('/proc/self/environ'), readFile('/proc/self/stat', 'utf8')])
    // proc(5): env_start is field 50. Field 2 is a name in parentheses that may hold any character, so counting starts after it.
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
