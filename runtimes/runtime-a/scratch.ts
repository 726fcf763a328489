import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Root } from './root.ts'

/** What the vendor's process writes beside the conversation: gone when its run is over. */
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
    // A process that is being killed may write a last time.
    remove: () => rm(folder, { recursive: true, force: true, maxRetries: 3 }),
  }
}
