import type { TestContext } from 'node:test'
import type { Database, Statement } from '#contracts/database'

/** What the statements of a role read from its database: the largest answer so far, how many there were, how many are under way. */
export interface Reads {
  largest: { rows: number; bytes: number }
  count: number
  underWay: number
  /** Called before each unit of work; what it throws, the unit fails with. */
  before: (sql: string) => void
  clear(): void
}

/** Watches the database that all plugins of a kernel share. */
export function watchReads(t: TestContext, database: Database): Reads {
  const reads: Reads = {
    largest: { rows: 0, bytes: 0 },
    count: 0,
    underWay: 0,
    before: () => {},
    clear: () => Object.assign(reads, { largest: { rows: 0, bytes: 0 }, count: 0 }),
  }
  const watch =
    (work: (...given: never[]) => Promise<unknown>, kind: 'tenanted' | 'one' | 'system') =>
    async (...given: unknown[]): Promise<unknown> => {
      const asked = given[kind === 'system' ? 0 : 1] as Statement | readonly Statement[]
      reads.before(
        [asked]
          .flat()
          .map(({ text }) => text)
          .join(';'),
      )
      reads.underWay++
      try {
        const answer = await (work as (...all: unknown[]) => Promise<unknown>)(...given)
        const statements = answer as (object | object[])[]
        const rows = statements.map((one) => (Array.isArray(one) ? one.length : 1))
        reads.count++
        reads.largest.rows = Math.max(reads.largest.rows, kind === 'one' ? rows.length : Math.max(0, ...rows))
        reads.largest.bytes = Math.max(reads.largest.bytes, Buffer.byteLength(JSON.stringify(answer)))
        return answer
      } finally {
        reads.underWay--
      }
    }
  for (const kind of ['claims', 'requests', 'reads', 'figures'] as const) {
    const view = database.as(kind)
    t.mock.method(view, 'batch', watch(view.batch.bind(view), 'tenanted'))
    t.mock.method(view, 'systemBatch', watch(view.systemBatch.bind(view), 'system'))
    t.mock.method(view, 'unit', watch(view.unit.bind(view), 'one'))
  }
  return reads
}
