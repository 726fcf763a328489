import { execFile } from 'node:child_process'
import { invalidSandbox, type SandboxResources } from '#contracts/sandbox'
import { dataLimit } from '#local-sandboxes'

/** Whether this machine has `prlimit` (util-linux). */
export const canLimit = (): Promise<boolean> =>
  new Promise((done) => {
    execFile('/usr/bin/prlimit', ['--data=unlimited', '/bin/true'], { env: {} }, (error) => done(!error))
  })

/**
 * What is put before a command so that it keeps to its limits. Memory is bounded for each process by itself; a bound on
 * processes would count all of the user's, so there is none.
 */
export function limited(resources: SandboxResources, prlimit: boolean): readonly string[] {
  const { memoryMb, ...rest } = resources
  const [unknown] = Object.entries(rest).flatMap(([name, value]) => (value === undefined ? [] : [name]))
  if (unknown !== undefined) {
    throw invalidSandbox(
      `The sandbox provider 'process' cannot limit ${unknown}: leave it out, or use another provider.`,
    )
  }
  if (memoryMb === undefined) return []
  if (!prlimit) throw invalidSandbox('This runner cannot limit memoryMb: there is no prlimit (util-linux).')
  return ['/usr/bin/prlimit', dataLimit(memoryMb), '--']
}
