import { lstat, mkdir, realpath } from 'node:fs/promises'
import { dirname, join, relative, resolve, sep } from 'node:path'
import { Type } from '@sinclair/typebox'
import { explained, outside, refused } from './errors.ts'

/** A path in a tool's input: relative to the workspace, or absolute and inside it. */
export const Path = Type.String({ minLength: 1, maxLength: 4_096 })

/** The folder that bounds the file tools. Its methods turn a tool's path into a real path. */
export interface Workspace {
  readonly root: string
  /** Makes the folder again when a tool has removed it. */
  keep(): Promise<void>
  /** The real path of an existing file or folder. Otherwise, and outside of the workspace, an AppError with a sentence for the model. */
  existing(path: string): Promise<string>
  /** The real path of a file to write. Neither the file nor its folders need to exist. */
  writable(path: string): Promise<string>
}

export async function createWorkspace(folder: string): Promise<Workspace> {
  await mkdir(folder, { recursive: true })
  const root = await realpath(folder)
  const inside = (real: string): boolean => real === root || real.startsWith(root.endsWith(sep) ? root : root + sep)
  const given = (path: string): string => {
    if (path.includes('\0')) throw refused('A path cannot hold a NUL character.')
    const absolute = resolve(root, path)
    if (!inside(absolute)) throw outside(path)
    return absolute
  }
  return {
    root,
    async keep() {
      await mkdir(root, { recursive: true })
    },
    async existing(path) {
      const real = await realpath(given(path)).catch((error: unknown) => {
        throw explained(path, error)
      })
      if (!inside(real)) throw outside(path)
      return real
    },
    async writable(path) {
      const absolute = given(path)
      for (let ancestor = absolute; ; ancestor = dirname(ancestor)) {
        const real = await realpath(ancestor).catch(() => undefined)
        if (real !== undefined) {
          if (!inside(real)) throw outside(path)
          return join(real, relative(ancestor, absolute))
        }
        // An entry without a real path is a dangling link. Writing to it would create the link's target.
        if (await lstat(ancestor).catch(() => undefined)) throw refused(`'${path}' leads through a link to nothing.`)
        if (ancestor === root) return absolute
      }
    },
  }
}
