// The database of the four-process form: the same embedded PostgreSQL as in development, with its default, crash-safe
// settings, kept apart from the roles. Its own process, because PostgreSQL ends with whoever started it.
import { startPostgres } from '#kit/postgres'

const server = await startPostgres({ dataDir: process.argv[2] ?? '' })
process.stdout.write(`${JSON.stringify({ dsn: server.dsn() })}\n`)
const alive = setInterval(() => {}, 60_000)
process.once('SIGTERM', () => {
  clearInterval(alive)
  void server.stop()
})
