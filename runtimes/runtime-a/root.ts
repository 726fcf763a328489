import { randomUUID } from 'node:crypto'
import { mkdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterwards } from './afterwards.ts'

/** A folder of this process alone, for conversations and what lives as long as a run. It is there once it is used. */
export interface Root {
  readonly path: string
  /** Makes a folder in it, unless it is there: machines sweep their temporary files after some days. */
  folder(name?: string): Promise<string>
  remove(): Promise<void>
}

export function createRoot(parent: string = tmpdir()): Root {
  const path = join(parent, `agent-orc-runtime-a-${randomUUID()}`)
  let release: (() => void) | undefined
  return {
    path,
    async folder(name = '.') {
      release ??= afterwards('exec /bin/rm -rf -- "$1"', path)
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
