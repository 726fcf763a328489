import { createHash } from 'node:crypto'
import { Cron } from 'croner'
import type { Problem } from './errors.ts'
import type { ScheduleBody } from './schema.ts'

/** Croner knows time zones, clock changes and days that a month does not have. */
const cronOf = ({ cron, timezone = 'UTC' }: Pick<ScheduleBody, 'cron' | 'timezone'>): Cron =>
  new Cron(cron, { timezone, paused: true })

export function cronProblem(body: ScheduleBody): Problem | undefined {
  try {
    new Intl.DateTimeFormat('en', { timeZone: body.timezone ?? 'UTC' })
  } catch {
    return { path: 'body/timezone', message: 'is no IANA time zone, such as Europe/Berlin' }
  }
  try {
    if (cronOf(body).nextRun() === null) return { path: 'body/cron', message: 'has no time that is still to come' }
    return undefined
  } catch (error) {
    return { path: 'body/cron', message: (error as Error).message }
  }
}
export const nextOf = (body: ScheduleBody, after: Date): Date | undefined => cronOf(body).nextRun(after) ?? undefined
/** The times behind `after`, at most so many, and none after `until`. */
export function timesOf(
  body: Pick<ScheduleBody, 'cron' | 'timezone'>,
  after: Date,
  most: number,
  until?: Date,
): Date[] {
  const cron = cronOf(body)
  const times: Date[] = []
  for (let at = cron.nextRun(after); at && times.length < most && (!until || at <= until); at = cron.nextRun(at))
    times.push(at)
  return times
}
export const isoOf = (at: Date): string => at.toISOString()

/** How much later a time is: drawn from its name, so that all processes say the same. */
export function jitterOf(id: string, { jitterSeconds = 0 }: ScheduleBody, at: Date): number {
  if (jitterSeconds === 0) return 0
  const drawn = createHash('sha256').update(`${id} ${at.getTime()}`).digest().readUInt32BE(0)
  return (drawn % (jitterSeconds + 1)) * 1_000
}
