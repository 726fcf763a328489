import { randomUUID } from 'node:crypto'
import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterwards } from './process.ts'

/** A folder of this process alone, for conversations and for the files of single runs. Created on first use. */
export interface Root {
  readonly path: string
  /** Creates a missing folder in it, because machines remove old temporary files after some days. */
  folder(name?: string): Promise<string>
  remove(): Promise<void>
}

/** Removes a folder, retrying for five seconds: the vendor's process is killed at the same time and may still write. */
const removal = 'i=0; until /bin/rm -rf -- "$1" 2>/dev/null || [ "$i" -ge 50 ]; do i=$((i + 1)); /bin/sleep 0.1; done'

export function createRoot(parent: string = tmpdir()): Root {
  const path = join(parent, `agent-orc-runtime-a-${randomUUID()}`)
  let release: (() => void) | undefined
  return {
    path,
    async folder(name = '.') {
      release ??= afterwards(removal, path)
      const folder = join(path, name)
      await mkdir(folder, { recursive: true, mode: 0o700 })
      return folder
    },
    async remove() {
      await rm(path, { recursive: true, force: true, maxRetries: 3 })
      release?.()
    },
  }
}

/** Folders for what the vendor's process writes outside the conversation. They are removed when the run is over. */
export interface Scratch {
  readonly home: string
  readonly work: string
  readonly tmp: string
  remove(): Promise<void>
}

export async function openScratch(root: Root): Promise<Scratch> {
  const folder = await mkdtemp(join(await root.folder(), 'run-'))
  const [home, work, tmp] = await Promise.all(
    ['home', 'work', 'tmp'].map(async (name) => {
      const path = join(folder, name)
      await mkdir(path, { mode: 0o700 })
      return path
    }),
  )
  return {
    home: home!,
    work: work!,
    tmp: tmp!,
    // Retry, because a process that is being killed may write a last time.
    remove: () => rm(folder, { recursive: true, force: true, maxRetries: 3 }),
  }
}
