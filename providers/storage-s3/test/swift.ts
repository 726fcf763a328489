import { execFile, spawn } from 'node:child_process'
import { access, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import type { S3Settings } from '../client.ts'

const script = fileURLToPath(new URL('swift-server.py', import.meta.url))
/** The packages of Debian are those of its own Python. */
const python = '/usr/bin/python3'
const library = '/usr/lib/python3/dist-packages/swift/common/middleware/s3api'
/** Swift keeps what it knows of objects in attributes of their files. */
const probe = `
import os, tempfile, eventlet, swift.common.middleware.s3api
with tempfile.TemporaryDirectory(dir=os.environ['TMPDIR']) as folder: os.setxattr(folder, 'user.swift', b'')`
/** A server that has not begun by then will not. */
const startMs = 60_000

/** Why there is no Swift here. */
export async function whyNoSwift(): Promise<string | undefined> {
  try {
    await access(library)
  } catch {
    return 'OpenStack Swift is not installed: apt-get install --no-install-recommends python3-swift'
  }
  return promisify(execFile)(python, ['-I', '-c', probe], { env: { TMPDIR: tmpdir() }, timeout: startMs }).then(
    () => undefined,
    (error: Error) =>
      `OpenStack Swift cannot run here, TMPDIR is ${tmpdir()}: ${error.message.trim().split('\n').at(-1)}`,
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
  // Its standard input ends with this process, however that ends, and so does it.
  const server = spawn(python, ['-I', script, folder, key.accessKeyId, key.secretAccessKey], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const ended = new Promise<void>((resolve) => server.once('close', () => resolve()))
  const stop = async () => {
    server.kill('SIGKILL')
    await ended
    await rm(folder, { recursive: true, force: true })
  }
  const late = setTimeout(() => server.kill('SIGKILL'), startMs)
  const lines = createInterface(server.stdout)[Symbol.asyncIterator]()
  const { value: port, done } = await lines.next().finally(() => clearTimeout(late))
  if (done) {
    await stop()
    throw new Error(`Swift ended, or had ${startMs} ms, before it accepted requests; what it said is above`)
  }
  return { settings: { ...key, endpoint: `http://127.0.0.1:${port}`, region: 'us-east-1', timeoutMs: 30_000 }, stop }
}
