import { maxQueued } from '#contracts/run-store'

interface Entry {
  readonly runId: string
  readonly front: boolean
}

/** The lines in front of busy sessions, by the session's key. */
export interface Queues {
  /** False: as many wait as may. */
  add(sessionKey: string, runId: string, front: boolean): boolean
  head(sessionKey: string): Entry | undefined
  remove(sessionKey: string, runId: string): void
  /** Takes everything out, or the interrupts alone. */
  clear(sessionKey: string, interruptsOnly?: boolean): string[]
}

export function createQueues(): Queues {
  const lines = new Map<string, Entry[]>()
  const keep = (key: string, line: Entry[]): void => void (line.length > 0 ? lines.set(key, line) : lines.delete(key))
  const take = (key: string, which: (entry: Entry) => boolean): string[] => {
    const line = lines.get(key) ?? []
    keep(
      key,
      line.filter((entry) => !which(entry)),
    )
    return line.filter(which).map(({ runId }) => runId)
  }
  return {
    add(key, runId, front) {
      const line = lines.get(key) ?? []
      if (!front && line.length >= maxQueued) return false
      keep(key, front ? [{ runId, front }, ...line] : [...line, { runId, front }])
      return true
    },
    head: (key) => lines.get(key)?.[0],
    remove: (key, runId) => void take(key, (entry) => entry.runId === runId),
    clear: (key, interruptsOnly = false) => take(key, (entry) => entry.front || !interruptsOnly),
  }
}
