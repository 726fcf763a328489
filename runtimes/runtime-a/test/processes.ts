import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

export interface Child {
  readonly pid: number
  readonly command: string
  readonly environment: string
}

const read = (path: string): string => {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
/** Those of this process that live, without zombies. */
export const vendorProcesses = (): Child[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name): Child[] => {
      const [state, parent] = read(`/proc/${name}/stat`).split(') ')[1]?.split(' ') ?? []
      if (parent !== String(process.pid) || state === 'Z') return []
      try {
        if (!readlinkSync(`/proc/${name}/exe`).endsWith('/claude')) return []
      } catch {
        return []
      }
      return [
        {
          pid: Number(name),
          command: read(`/proc/${name}/cmdline`),
          environment: read(`/proc/${name}/environ`),
        },
      ]
    })

/** Resolves with the only one of them, as soon as there is one. */
export async function vendorProcessOfRun(): Promise<Child> {
  for (;;) {
    const [child, ...others] = vendorProcesses()
    if (others.length > 0) throw new Error('more than one process of the vendor')
    if (child && child.command !== '') return child
    await sleep(5)
  }
}
