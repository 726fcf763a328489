import { type Database, sqlState, type Statement } from '#contracts/database'

/** Transactions under way at once: one more than needed to keep the server busy while another's answer travels. */
const lanes = 3
/** What one transaction may carry: bounded, because one refused statement repeats them all singly. */
const groupSize = 32
const groupBytes = 1024 * 1024

interface Waiting {
  readonly session: string
  readonly statement: Statement
  readonly bytes: number
  readonly resolve: (rows: object[]) => void
  readonly reject: (error: unknown) => void
}

/**
 * Runs single-statement units of work. Alone it leaves at once; while the lanes are taken, units of the same tenant wait
 * together and leave as one transaction in one round trip. Each resolves to its own rows, as if it had run alone.
 */
export interface GroupCommit {
  run<Row extends object>(tenantId: string, session: string, statement: Statement, bytes?: number): Promise<Row[]>
}

export function createGroupCommit(db: Database): GroupCommit {
  const waiting = new Map<string, Waiting[]>()
  let busy = 0

  const take = (): { tenantId: string; group: Waiting[] } | undefined => {
    const [first] = waiting
    if (!first) return undefined
    const [tenantId, queue] = first
    let bytes = 0
    let size = 0
    while (size < queue.length && size < groupSize && (size === 0 || bytes + queue[size]!.bytes <= groupBytes)) {
      bytes += queue[size++]!.bytes
    }
    waiting.delete(tenantId)
    // What is left goes behind the other tenants.
    if (size < queue.length) waiting.set(tenantId, queue.slice(size))
    return { tenantId, group: size < queue.length ? queue.slice(0, size) : queue }
  }
  const singly = async (tenantId: string, unit: Waiting): Promise<void> => {
    await db.batch<[object[]]>(tenantId, [unit.statement]).then(([rows]) => unit.resolve(rows), unit.reject)
  }
  const together = async (tenantId: string, group: Waiting[]): Promise<void> => {
    // One order for every transaction, so that two of them never wait for each other's sessions.
    if (group.length > 1) group.sort((a, b) => (a.session < b.session ? -1 : a.session > b.session ? 1 : 0))
    try {
      const rows = await db.batch(
        tenantId,
        group.map((unit) => unit.statement),
      )
      group.forEach((unit, i) => unit.resolve(rows[i]!))
    } catch (error) {
      // A statement that the server refused took the others with it, and nothing was committed. An answer that never
      // came is another matter: each caller decides what a repetition means.
      if (group.length > 1 && sqlState(error) !== undefined) for (const unit of group) await singly(tenantId, unit)
      else for (const unit of group) unit.reject(error)
    }
  }
  const pump = (): void => {
    while (busy < lanes) {
      const next = take()
      if (!next) return
      busy++
      void together(next.tenantId, next.group).finally(() => {
        busy--
        pump()
      })
    }
  }
  return {
    run<Row extends object>(tenantId: string, session: string, statement: Statement, bytes = 0) {
      return new Promise<Row[]>((resolve, reject) => {
        const unit: Waiting = { session, statement, bytes, resolve: resolve as Waiting['resolve'], reject }
        const queue = waiting.get(tenantId)
        if (queue) queue.push(unit)
        else waiting.set(tenantId, [unit])
        pump()
      })
    },
  }
}
