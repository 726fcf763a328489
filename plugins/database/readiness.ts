import type { ReadinessCheck } from '#contracts/health'
import type { Database } from '#contracts/database'
import { databaseAway } from './errors.ts'

const limitMs = 2_000

/** `SELECT 1` within 2 s. Probes that come while one is under way share it, so a hanging server does not eat the pool. */
export function createReadinessCheck(database: Pick<Database, 'systemBatch'>): ReadinessCheck {
  let asking: Promise<unknown> | undefined
  return async () => {
    asking ??= database.systemBatch([{ name: 'ao_ready', text: 'SELECT 1' }]).finally(() => (asking = undefined))
    let timer: NodeJS.Timeout | undefined
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(databaseAway(new Error(`no answer within ${limitMs} ms`))), limitMs)
    })
    await Promise.race([asking, late]).finally(() => clearTimeout(timer))
  }
}
