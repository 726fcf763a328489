import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Processes } from './processes.ts'

/** Starts a Redis of the bench's own, with nothing on disk; undefined where there is no `redis-server` on the PATH. */
export async function startRedis(processes: Processes): Promise<string | undefined> {
  if (spawnSync('redis-server', ['--version']).status !== 0) return undefined
  const port = await freePort()
  const args = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no']
  const child = spawn('redis-server', args, { stdio: 'ignore', detached: true })
  processes.onStop(() => processes.stopOne(child))
  for (let attempt = 0; !(await accepts(port)); attempt++) {
    if (attempt === 100) throw new Error('redis-server does not start')
    await sleep(50)
  }
  return `redis://127.0.0.1:${port}`
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  return port
}

async function accepts(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1')
  try {
    await once(socket, 'connect')
    return true
  } catch {
    return false
  } finally {
    socket.destroy()
  }
}
