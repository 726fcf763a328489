import { type DestinationStream, type Logger, pino } from 'pino'

// Keys under which credentials are sent. Redaction goes by key, so log objects, never strings that hold a header.
const secretKeys = ['authorization', 'apiKey', 'token', 'password', 'secret', 'pepper', 'cookie', 'dsn']

/** The kernel's logger: JSON lines on stderr, because stdout belongs to what a command prints. */
export function createLogger(role: string, level: string, destination?: DestinationStream): Logger {
  const paths = secretKeys.flatMap((key) => [key, `*.${key}`, `*.*.${key}`, `headers["${key}"]`])
  return pino(
    { level, base: { role }, redact: { paths, censor: '[redacted]' }, timestamp: pino.stdTimeFunctions.isoTime },
    destination ?? pino.destination({ dest: 2, sync: false }),
  )
}
