// The yardstick of starting a run: HTTP in, one durable row, HTTP out. Fastify and pg, one statement in its own
// transaction, its columns those without which a run would be none; no authentication, nothing executed. Its own process.
import { randomUUID } from 'node:crypto'
import Fastify from 'fastify'
import pg from 'pg'
import { announce } from './processes.ts'

const pool = new pg.Pool({ connectionString: process.argv[2] ?? '', max: 10 })
await pool.query(`CREATE TABLE IF NOT EXISTS bench_runs (
  tenant_id text, id text, profile text, prompt text, started_at timestamptz DEFAULT now(), PRIMARY KEY (tenant_id, id))`)
const app = Fastify({ logger: false })
app.post<{ Body: { profile: string; prompt: string } }>('/api/runs', async (request, reply) => {
  const runId = randomUUID()
  const { profile, prompt } = request.body
  await pool.query({
    name: 'insert',
    text: "INSERT INTO bench_runs (tenant_id, id, profile, prompt) VALUES ('default', $1, $2, $3)",
    values: [runId, profile, prompt],
  })
  return reply.code(202).send({ runId })
})
await app.listen({ host: '127.0.0.1', port: 0 })
announce(app.server)
