import { mkdir, readFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { type Static, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { replaceFile } from '../disk.ts'
import type { Known } from './plan.ts'

const Stored = Type.Object({
  version: Type.Literal(1),
  mounts: Type.Array(
    Type.Object({ name: Type.String(), files: Type.Array(Type.Tuple([Type.String(), Type.String(), Type.String()])) }),
  ),
})

/** What both sides last had in common, by mount and path. */
export class KnownFiles {
  readonly #file: string | undefined
  readonly #mounts = new Map<string, Map<string, Known>>()
  #loaded = false
  #saved = ''

  /** A file that keeps it; undefined: it goes with this process, and files that are equal are then known again by their bytes. */
  constructor(file: string | undefined) {
    this.#file = file
  }

  of(mount: string): Map<string, Known> {
    const files = this.#mounts.get(mount) ?? new Map<string, Known>()
    this.#mounts.set(mount, files)
    return files
  }
  keepOnly(mounts: readonly string[]): void {
    for (const name of this.#mounts.keys()) if (!mounts.includes(name)) this.#mounts.delete(name)
  }
  async load(): Promise<void> {
    if (this.#loaded || this.#file === undefined) return
    this.#loaded = true
    const text = await readFile(this.#file, 'utf8').catch(() => '')
    const stored = storedIn(text)
    if (!stored) return
    this.#saved = text
    for (const { name, files } of stored.mounts)
      this.#mounts.set(name, new Map(files.map(([path, etag, stamp]) => [path, { etag, stamp }])))
  }
  async save(): Promise<void> {
    if (this.#file === undefined) return
    const mounts = [...this.#mounts].map(([name, files]) => ({
      name,
      files: [...files].map(([path, { etag, stamp }]) => [path, etag, stamp]),
    }))
    const text = JSON.stringify({ version: 1, mounts })
    if (text === this.#saved) return
    await mkdir(dirname(this.#file), { recursive: true, mode: 0o700 })
    await replaceFile(this.#file, [Buffer.from(text)])
    this.#saved = text
  }
}

function storedIn(text: string): Static<typeof Stored> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return Value.Check(Stored, value) ? value : undefined
  } catch {
    return undefined
  }
}
