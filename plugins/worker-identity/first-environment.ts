import { open, readFile } from 'node:fs/promises'

/**
 * Blanks a variable in the environment that this process was started with. The kernel shows that to every process of the same
 * user, in /proc/PID/environ, and the agent's own commands are such: they should not find the token by looking around.
 * Resolves to false where the system has no such place, or does not let it be changed.
 */
export async function blankFirstEnvironment(name: string): Promise<boolean> {
  try {
    const [shown, stat] = await Promise.all([readFile('/proc/self/environ'), readFile('/proc/self/stat', 'utf8')])
    // proc(5): env_start is field 50; the second one is a name in parentheses that may hold anything.
    const start = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[50 - 3])
    const at = `\0${shown.toString('latin1')}`.indexOf(`\0${name}=`)
    if (at < 0) return true
    const from = at + name.length + 1
    const memory = await open('/proc/self/mem', 'r+')
    try {
      await memory.write(Buffer.alloc(shown.indexOf(0, from) - from), 0, undefined, start + from)
    } finally {
      await memory.close()
    }
    return true
  } catch {
    return false
  }
}
