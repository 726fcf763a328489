import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type PostgresServer, startPostgres } from '#kit/postgres'

/** The stores that the cluster stands on. Each can be stopped and started again with its data. */
export interface Servers {
  readonly dsn: string
  readonly redisUrl: string
  /** False for a Redis that was there before: it is cut off by the proxies only. */
  readonly ownsRedis: boolean
  stopPostgres(): Promise<void>
  startPostgres(): Promise<void>
  stopRedis(): Promise<void>
  startRedis(): Promise<void>
  stop(): Promise<void>
}

const redisPort = 17_000 + (process.pid % 900)

export async function startServers(folder: string): Promise<Servers> {
  const dataDir = join(folder, 'data')
  let postgres: PostgresServer = await startPostgres({ dataDir })
  const dsn = postgres.dsn()
  const ownsRedis = spawnSync('redis-server', ['--version']).status === 0
  const redisUrl = ownsRedis ? `redis://127.0.0.1:${redisPort}` : process.env['REDIS_URL'] || 'redis://127.0.0.1:6379'
  let redis: ChildProcess | undefined
  const startRedis = async (): Promise<void> => {
    if (!ownsRedis) return
    // Append-only, so that nonces survive its restart as they do where an operator cares.
    const args = [
      '--port',
      String(redisPort),
      '--bind',
      '127.0.0.1',
      '--dir',
      folder,
      '--save',
      '',
      '--appendonly',
      'yes',
    ]
    redis = spawn('redis-server', args, { stdio: 'ignore' })
    for (let attempt = 0; !(await accepts(redisPort)); attempt++) {
      if (attempt === 100) throw new Error('redis-server does not start')
      await sleep(50)
    }
  }
  const stopRedis = async (): Promise<void> => {
    if (!redis || redis.exitCode !== null || redis.signalCode !== null) return
    redis.kill('SIGTERM')
    await once(redis, 'exit')
  }
  await startRedis()
  return {
    dsn,
    redisUrl,
    ownsRedis,
    stopPostgres: () => postgres.stop(),
    async startPostgres() {
      postgres = await startPostgres({ dataDir })
    },
    stopRedis,
    startRedis,
    async stop() {
      await stopRedis()
      await postgres.stop()
    },
  }
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
