import { connect, type Server, type Socket } from 'node:net'
import { invalidSandbox } from '#contracts/sandbox'

/** Inside, where a runner usually listens; nothing else has a port there. */
export const runnerPort = 7060

/** Far more than a worker and its programs hold open at once; each takes two of the runner's open files. */
const mostConnections = 256

/**
 * Carries bytes from a port inside a sandbox to the runner's listener for workers, and to nothing else. The socket listens in
 * the network of the sandbox and is ours to accept from: nothing of the host has to be visible inside.
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
      // Either end may vanish in any way, and the other one goes with it: after an orderly end, once it has sent the rest.
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
