import type { PlatformTool } from '#contracts/tools'
import { toolErrors } from '../errors.ts'

/** The clock of the runner, in any IANA time zone. */
export const currentTime: PlatformTool = {
  name: 'current_time',
  description: 'Returns the current date and time in UTC and, when a time zone is given, there.',
  inputSchema: {
    type: 'object',
    properties: {
      timeZone: {
        type: 'string',
        maxLength: 64,
        description: 'IANA name, for example Europe/Berlin. UTC by default.',
      },
    },
    additionalProperties: false,
  },
  async execute(input) {
    const timeZone = typeof input['timeZone'] === 'string' ? input['timeZone'] : 'UTC'
    return { ok: true, content: JSON.stringify(timeIn(timeZone, new Date())) }
  },
}

/** `local` is ISO 8601 with the zone's offset at that moment. */
export function timeIn(timeZone: string, now: Date): Record<string, string> {
  const parts = partsOf(timeZone, now)
  const offset = parts['timeZoneName']!.replace('GMT', '') || '+00:00'
  const clock = `${parts['hour']}:${parts['minute']}:${parts['second']}`
  return {
    utc: now.toISOString(),
    timeZone,
    local: `${parts['year']}-${parts['month']}-${parts['day']}T${clock}${offset}`,
    weekday: parts['weekday']!,
  }
}

function partsOf(timeZone: string, now: Date): Record<string, string> {
  try {
    const format = new Intl.DateTimeFormat('en-US', {
      timeZone,
      hourCycle: 'h23',
      year: 'numeric',
      month: '2-digit',
      day: '2-digit',
      hour: '2-digit',
      minute: '2-digit',
      second: '2-digit',
      weekday: 'long',
      timeZoneName: 'longOffset',
    })
    return Object.fromEntries(format.formatToParts(now).map(({ type, value }) => [type, value]))
  } catch {
    throw toolErrors.unknownTimeZone()
  }
}
