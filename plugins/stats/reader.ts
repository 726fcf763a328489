import { isAppError, unavailable } from '#kernel'
import type { Database, Statement } from '#contracts/database'
import { Shares } from '#kit/turns'

/** Queries for figures that run at the same time. Each reads many rows and holds a connection, and chats need the other connections. */
const together = 2
/** Queries of one tenant at the same time: while one reads a year, others get their figures. */
const each = 1
/** Queries of one tenant that may wait. A longer queue is pointless: the client would have left before its answer. */
const mostWaiting = 50

const busy = () =>
  unavailable({
    message: 'Too many figures are being computed; try again shortly.',
    retryable: true,
    headers: { 'retry-after': '2' },
  })
const tooMuch = (cause: unknown) =>
  unavailable({ message: 'These figures took too long to compute; ask for a shorter window.', cause })

// A month of a busy tenant is a million rows, grouped in memory. The newest rows of a range are together and mostly in memory: for rows that lie
// apart on a turning disk, which is the default, PostgreSQL sorts those of a day instead of reading them in the order of their index. Both settings
// end with the transaction.
const limits: Statement = {
  name: 'stats-limits',
  text: `SELECT set_config('work_mem', '32MB', true), set_config('random_page_cost', '1.1', true)`,
}
const clock: Statement = { name: 'stats-clock', text: 'SELECT now() AS now' }

/** Runs the queries for figures: two at a time, of different tenants, each with limits. */
export interface Reader {
  /** The time of the database. Rows carry the database's time, which may differ from the clock of this process. */
  now(): Promise<Date>
  read<Rows extends object[][]>(tenantId: string, statements: readonly Statement[]): Promise<Rows>
}

export function createReader(database: Database): Reader {
  const shares = new Shares({ together, each, mostWaiting, busy })
  return {
    async now() {
      const [[row]] = await database.systemBatch<[{ now: string }[]]>([clock])
      return new Date(row!.now)
    },
    async read<Rows extends object[][]>(tenantId: string, statements: readonly Statement[]): Promise<Rows> {
      try {
        const all = [limits, ...statements]
        const [, ...rows] = await shares.take(tenantId, () => database.as('figures').batch<object[][]>(tenantId, all))
        return rows as Rows
      } catch (error) {
        throw isAppError(error) && error.code === 'database_too_slow' ? tooMuch(error) : error
      }
    },
  }
}
