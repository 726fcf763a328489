import { createHash } from 'node:crypto'
import { Cron } from 'croner'
import { textOf } from './evaluator.ts'
import type { Failure } from './outcome.ts'
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
/** The first `most` scheduled times after `after`, and none after `until`. */
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
/** The last `most` scheduled times after `after` and up to `until`, in order. Searches backwards, so earlier times cost nothing. */
export function lastTimesOf(
  body: Pick<ScheduleBody, 'cron' | 'timezone'>,
  after: Date,
  most: number,
  until: Date,
): Date[] {
  // Croner returns times before a whole second, so the end is the second after `until`.
  const end = new Date(Math.floor(until.getTime() / 1_000) * 1_000 + 1_000)
  const times = cronOf(body).previousRuns(most, end)
  return times.filter((at) => at > after).toReversed()
}
export const isoOf = (at: Date): string => at.toISOString()

/** The random delay of a scheduled time in milliseconds. It is derived from the schedule's id and the time, so that all processes agree. */
export function jitterOf(id: string, { jitterSeconds = 0 }: ScheduleBody, at: Date): number {
  if (jitterSeconds === 0) return 0
  const drawn = createHash('sha256').update(`${id} ${at.getTime()}`).digest().readUInt32BE(0)
  return (drawn % (jitterSeconds + 1)) * 1_000
}

/** A scheduled time was missed if its turn is longer ago than this: no server was running then. */
const missedAfterMs = 60_000
/** The times that were missed. The turn of a time never comes before those of earlier times, even if its own jitter is shorter. */
export function missedOf(id: string, body: ScheduleBody, times: readonly Date[], now: Date): Date[] {
  let turn = 0
  return times.filter((at) => {
    turn = Math.max(turn, at.getTime() + jitterOf(id, body, at))
    return now.getTime() - turn > missedAfterMs
  })
}

const longestWaitMs = 366 * 86_400_000

/** Milliseconds after `now` until a wait ends. Undefined: it has no end of its own. A failure: the value is no time within a year. */
export function dueIn(
  { seconds, until }: { readonly seconds: string; readonly until: string },
  now: number,
): number | Failure | undefined {
  if (seconds !== 'null') {
    const wanted = Number(textOf(seconds))
    if (!(wanted >= 0 && wanted * 1_000 <= longestWaitMs)) {
      return {
        code: 'bad_time',
        message: '`seconds` did not come out as a number of seconds within a year.',
        retryable: false,
      }
    }
    return wanted * 1_000
  }
  if (until === 'null') return undefined
  const at = Date.parse(textOf(until))
  if (!(at - now <= longestWaitMs)) {
    return { code: 'bad_time', message: '`until` did not come out as a time within a year.', retryable: false }
  }
  return Math.max(0, at - now)
}
