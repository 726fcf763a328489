import { Pool } from 'undici'
import { quantile } from '../statistics.ts'
import type { Dev } from './dev.ts'

export interface McpFigures {
  /** Milliseconds of one `tools/call`, one at a time. */
  readonly p50: number
  readonly p99: number
  /** Milliseconds of a route that only answers, over the same connection. */
  readonly bareP50: number
}

const calls = 2_000
const discarded = 200

/** The session MCP endpoint of a runner: `current_time`, over one connection that is kept. */
export async function measureMcp(dev: Dev): Promise<McpFigures> {
  await dev.call('POST', '/api/profiles', { name: 'mcp-bench', tools: ['current_time'] })
  const { sessionId } = await dev.call<{ sessionId: string }>('POST', '/api/runs', {
    profile: 'mcp-bench',
    prompt: 'Hello',
  })
  const pool = new Pool(dev.runnerUrl, { connections: 1 })
  const timed = async (path: string, body?: string): Promise<number[]> => {
    const times: number[] = []
    for (let i = 0; i < calls + discarded; i++) {
      const began = performance.now()
      const reply = await pool.request({
        path,
        method: body === undefined ? 'GET' : 'POST',
        headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
        ...(body === undefined ? {} : { body }),
      })
      const text = await reply.body.text()
      if (reply.statusCode !== 200 || (body !== undefined && !text.includes('"result"'))) {
        throw new Error(`${path}: ${reply.statusCode} ${text}`)
      }
      times.push(performance.now() - began)
    }
    return times.slice(discarded)
  }
  const params = { name: 'current_time', arguments: {} }
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params })
  try {
    const bare = await timed('/healthz')
    const mcp = await timed(`/runner/sessions/${sessionId}/mcp`, body)
    return { p50: quantile(mcp, 0.5), p99: quantile(mcp, 0.99), bareP50: quantile(bare, 0.5) }
  } finally {
    await pool.close()
  }
}
