import { spawn } from 'node:child_process'
import { access, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { S3Settings } from '../client.ts'

const script = fileURLToPath(new URL('swift-server.py', import.meta.url))
/** The packages of Debian are those of its own Python. */
const python = '/usr/bin/python3'
const library = '/usr/lib/python3/dist-packages/swift/common/middleware/s3api'

/** Why there is no Swift here. */
export async function whyNoSwift(): Promise<string | undefined> {
  return access(library).then(
    () => undefined,
    () => 'OpenStack Swift is not installed: apt-get install --no-install-recommends python3-swift',
  )
}

export interface Swift {
  readonly settings: Omit<S3Settings, 'bucket'>
  stop(): Promise<void>
}

/** An object store of OpenStack that speaks S3, with nothing in it; what it keeps is gone with it. */
export async function startSwift(): Promise<Swift> {
  const missing = await whyNoSwift()
  if (missing) throw new Error(missing)
  const folder = await mkdtemp(join(tmpdir(), 'ao-swift-'))
  const key = { accessKeyId: 'test:tester', secretAccessKey: 'testing' }
  const server = spawn(python, [script, folder, key.accessKeyId, key.secretAccessKey], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const ended = new Promise<void>((resolve) => server.once('close', () => resolve()))
  const stop = async () => {
    server.stdin.destroy()
    await ended
    await rm(folder, { recursive: true, force: true })
  }
  const lines = createInterface(server.stdout)[Symbol.asyncIterator]()
  const { value: port, done } = await lines.next()
  if (done) {
    await stop()
    throw new Error('Swift ended before it accepted requests')
  }
  return { settings: { ...key, endpoint: `http://127.0.0.1:${port}`, region: 'us-east-1', timeoutMs: 30_000 }, stop }
}
