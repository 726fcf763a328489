import { sqlState, type Statement, type UnitOptions } from '#contracts/database'
import { databaseBusy } from './errors.ts'

// Units of work of one statement, which share few connections: most of what runs and chats write.

/** Concurrent transactions: one more than the server needs to stay busy while another answer is in transit. */
export const lanes = 2
/** The most units of one transaction. It is limited, because one refused statement repeats all units singly. */
const groupSize = 32
const groupBytes = 1024 * 1024
/** The most units of one tenant in a group, alone and while others wait. Some tenants' units are slow, as with hundreds of budgets. */
const mostOfTenant = { alone: 16, together: 8 }
/** SQLSTATE of a statement that waited too long for a locked row. */
const lockedRow = '55P03'
/** SQLSTATE of a statement that took too long. */
const tooLong = '57014'
/** For so long the units of a tenant whose unit met a locked row are sent aside, in milliseconds. */
const asideMs = 5_000

export interface Unit {
  readonly tenantId: string
  readonly statement: Statement
}

interface Waiting extends Unit {
  readonly order: string
  readonly bytes: number
  readonly resolve: (rows: object[]) => void
  readonly reject: (error: unknown) => void
}

/** Why a group failed, and the index of the unit that the server refused; -1 when the index is not known. */
export class GroupRefused extends Error {
  readonly unit: number
  constructor(cause: unknown, unit: number) {
    super('a group of units failed', { cause })
    this.unit = unit
  }
}

/** Sends units as one transaction in one round trip. Resolves to the rows of each unit, or rejects with `GroupRefused`. */
export type SendTogether = (units: readonly Unit[]) => Promise<object[][]>

/**
 * Runs single-statement units of work. A single unit leaves at once; while the lanes are taken, units wait and leave together as one transaction.
 * Measured with 64 concurrent chats: commits per chat fall from 5 to 0.5, and PostgreSQL's CPU use to a third. `aside` sends units of one tenant
 * where no other tenant waits with them, and waits for rows as long as it takes.
 */
export function createUnits(
  send: SendTogether,
  aside: SendTogether,
): (tenantId: string, statement: Statement, options?: UnitOptions) => Promise<object[]> {
  let waiting: Waiting[] = []
  let busy = 0
  const locked = new LockedTenants()
  /** The units of each tenant that are sent aside, one group after the other. */
  const asides = new Map<string, Waiting[]>()

  const take = (): Waiting[] => {
    const { units, most } = byTurns(waiting)
    const group = firstOf(units, most)
    waiting = units.slice(group.length)
    return group
  }
  const together = (units: Waiting[]): Promise<void> =>
    settle(units, send, async ({ tenantId }, group) => {
      // Nothing of the group was committed. What else its tenant has may meet the same row, and is sent aside with it.
      locked.note(tenantId)
      const isTheirs = (unit: Waiting): boolean => unit.tenantId === tenantId
      leave(tenantId, [...group.filter(isTheirs), ...waiting.filter(isTheirs)])
      waiting = waiting.filter((unit) => !isTheirs(unit))
      const others = group.filter((unit) => !isTheirs(unit))
      if (others.length > 0) await together(others)
    })
  const leave = (tenantId: string, units: readonly Waiting[]): void => {
    const under = asides.get(tenantId)
    if (under) return void under.push(...units)
    asides.set(tenantId, [...units])
    void drain(tenantId)
  }
  const drain = async (tenantId: string): Promise<void> => {
    const left = asides.get(tenantId)!
    while (left.length > 0) {
      const group = firstOf(left, mostOfTenant.alone)
      left.splice(0, group.length)
      await settle(group, aside)
    }
    asides.delete(tenantId)
  }
  const pump = (): void => {
    while (busy < lanes && waiting.length > 0) {
      busy++
      void together(take()).finally(() => {
        busy--
        pump()
      })
    }
  }
  return (tenantId, statement, { order = '', bytes = 0 } = {}) =>
    new Promise((resolve, reject) => {
      const unit = { tenantId, statement, order, bytes, resolve, reject }
      if (asides.has(tenantId) || locked.has(tenantId)) return leave(tenantId, [unit])
      waiting.push(unit)
      pump()
    })
}

/** As many of the first `most` units as fit into a group, one at least. */
function firstOf(units: readonly Waiting[], most: number): Waiting[] {
  let bytes = 0
  let size = 0
  while (size < Math.min(units.length, most, groupSize) && (size === 0 || bytes + units[size]!.bytes <= groupBytes))
    bytes += units[size++]!.bytes
  return units.slice(0, size)
}

/** Has a group again, of which no unit has an answer, because one of them waited too long for a row. */
type OnLocked = (met: Waiting, group: readonly Waiting[]) => Promise<void>

/** Sends a group and settles each of its units, or leaves them to `onLocked`. */
async function settle(group: Waiting[], send: SendTogether, onLocked?: OnLocked): Promise<void> {
  // Every transaction uses the same order, so that no two wait for each other's rows. Tenants come first, because some units lock a row of their
  // tenant beside what they name, as starts and ends of runs do for billing.
  if (group.length > 1) group.sort((a, b) => compare(a.tenantId, b.tenantId) || compare(a.order, b.order))
  try {
    const rows = await send(group)
    group.forEach((unit, i) => unit.resolve(rows[i]!))
  } catch (error) {
    const { cause, unit } = error as GroupRefused
    const met = sqlState(cause) === lockedRow ? group[unit] : undefined
    if (met && onLocked) return onLocked(met, group)
    // A lost answer does not say whether the units were committed. Each caller decides whether to retry.
    if (group.length === 1 || sqlState(cause) === undefined) {
      const told = sqlState(cause) === tooLong ? databaseBusy(cause) : cause
      for (const one of group) one.reject(told)
      return
    }
    // The refused unit rolled the others back, so nothing was committed. The others are sent again together. The refused unit runs alone,
    // because the others may have caused the refusal (a deadlock, a row that they had just written).
    const alone = unit < 0 ? group.splice(0) : group.splice(unit, 1)
    if (group.length > 0) await settle(group, send, onLocked)
    for (const one of alone) await settle([one], send, onLocked)
  }
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)

/**
 * Orders units so that each tenant's units keep their order and tenants take turns. One tenant's backlog then does not delay another's units. `most`:
 * how many of the first ones may be in one group, by how many of them are one tenant's.
 */
function byTurns(units: Waiting[]): { readonly units: Waiting[]; readonly most: number } {
  const first = units[0]?.tenantId
  // Nearly always: one unit, or those of one tenant.
  if (units.every(({ tenantId }) => tenantId === first)) return { units, most: mostOfTenant.alone }
  const counts = new Map<string, number>()
  const ranked = units.map((unit) => {
    const turn = counts.get(unit.tenantId) ?? 0
    counts.set(unit.tenantId, turn + 1)
    return { unit, turn }
  })
  ranked.sort((a, b) => a.turn - b.turn)
  const beyond = ranked.findIndex(({ turn }) => turn >= mostOfTenant.together)
  return { units: ranked.map(({ unit }) => unit), most: beyond < 0 ? Infinity : beyond }
}

/**
 * Tenants of which a unit met a row that a transaction of theirs keeps locked, as an erasure does. Others would wait for each of their units, and the
 * few connections of all units would serve nobody.
 */
class LockedTenants {
  readonly #until = new Map<string, number>()

  note(tenantId: string): void {
    this.#until.delete(tenantId)
    this.#until.set(tenantId, performance.now() + asideMs)
  }
  has(tenantId: string): boolean {
    // Those noted first are over first.
    for (const [one, until] of this.#until) {
      if (until > performance.now()) break
      this.#until.delete(one)
    }
    return this.#until.has(tenantId)
  }
}
