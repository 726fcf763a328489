import { connect, type Server, type Socket } from 'node:net'
import { invalidSandbox } from '#contracts/sandbox'

/** The port inside the sandbox: the usual port of a runner. */
export const runnerPort = 7060

/** The most connections, far more than a worker and its programs need at once. Each uses two of the runner's open files. */
const mostConnections = 256

/**
 * Copies bytes between a port inside a sandbox and the runner's listener for workers, and nothing else. The socket listens in the sandbox's network
 * namespace, but this process accepts its connections, so nothing of the host needs to be visible inside.
 */
export function relay(server: Server, runner: Address): () => void {
  const open = new Set<Socket>()
  server.maxConnections = mostConnections
  server.on('connection', (inner) => {
    const outer = connect(runner)
    for (const [one, other] of [
      [inner, outer],
      [outer, inner],
    ] as const) {
      open.add(one)
      one.pipe(other)
      // If one end fails, the other is destroyed. After an orderly end the other end first sends what remains.
      one.on('error', () => other.destroy())
      one.on('close', () => {
        open.delete(one)
        other.end()
      })
    }
  })
  server.on('error', () => {})
  return () => {
    server.close()
    for (const socket of open) socket.destroy()
  }
}

interface Address {
  readonly host: string
  readonly port: number
}

export function addressOf(runnerUrl: string): Address {
  const { protocol, hostname, port } = new URL(runnerUrl)
  if (protocol !== 'http:') {
    throw invalidSandbox("The sandbox provider 'bubblewrap' needs a plain http address of the runner, on this machine.")
  }
  return { host: hostname.replace(/^\[(.*)\]$/, '$1'), port: Number(port || 80) }
}

/** The runner's address as a worker sees it. */
export const insideUrl = (runnerUrl: string): string =>
  `http://127.0.0.1:${runnerPort}${new URL(runnerUrl).pathname.replace(/\/$/, '')}`
