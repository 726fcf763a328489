import { randomInt } from 'node:crypto'
import { readFile } from 'node:fs/promises'

/**
 * Nobody's: systemd's list of uid ranges calls them unused, and no distribution hands them out. The range of containers of
 * systemd-nspawn ends below it.
 */
const first = 0x7000_0000
const count = 2 ** 26

/**
 * Draws the host's uid of a sandbox for a runner that is root: inside a user namespace root would stay root to the kernel,
 * which then counts no processes and lets it write `/proc/sys`. A runner that is an ordinary user needs none: its own is
 * what sandboxes are to the host.
 */
export async function drawHostUser(): Promise<(() => number) | undefined> {
  if (process.getuid?.() !== 0) return undefined
  const rows = (await readFile('/proc/self/uid_map', 'utf8')).trim().split('\n')
  const isRoot = rows.some((row) => /^\s*0\s+0\s/.test(row))
  return isRoot ? () => first + randomInt(count) : undefined
}
