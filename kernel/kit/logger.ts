import { type DestinationStream, type Logger, pino } from 'pino'

// Keys whose values are credentials. Redaction works by key, so log objects, never strings that contain a header.
const secretKeys = ['authorization', 'apiKey', 'token', 'password', 'secret', 'pepper', 'cookie', 'dsn']

/** The kernel's logger writes JSON lines to stderr, because stdout is for the output of commands. */
export function createLogger(role: string, level: string, destination?: DestinationStream): Logger {
  const paths = secretKeys.flatMap((key) => [key, `*.${key}`, `*.*.${key}`, `headers["${key}"]`])
  return pino(
    { level, base: { role }, redact: { paths, censor: '[redacted]' }, timestamp: pino.stdTimeFunctions.isoTime },
    destination ?? pino.destination({ dest: 2, sync: false }),
  )
}
