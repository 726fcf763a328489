import { createHash } from 'node:crypto'
import { buffer } from 'node:stream/consumers'
import type { CopyShare, TreeMount } from '#contracts/session-vfs'
import { isNewVfsPath } from '#contracts/vfs'
import { workerErrors } from '../errors.ts'
import type { RemoteFiles } from '../vfs/remote.ts'

/** The VirtualFS of a session in memory, as its runner gives it to a worker. */
export class MemoryRemote implements RemoteFiles {
  readonly mounts = new Map<string, Map<string, string>>()
  readonly readOnly = new Set<string>()
  readonly unavailable = new Map<string, string>()
  share: CopyShare = { files: 100, bytes: 1_000_000, fileBytes: 100_000 }
  /** The most files of a mount that a list holds. */
  listed = 100
  /** The error of every request while it is set. */
  away: Error | undefined
  /** The reason for which writes of a path are refused, by path. */
  readonly refused = new Map<string, string>()
  /** The paths of executable files. */
  readonly executable = new Set<string>()
  readonly asked: string[] = []

  constructor(...mounts: readonly string[]) {
    for (const mount of mounts) this.mounts.set(mount, new Map())
  }
  of(mount: string): Map<string, string> {
    return this.mounts.get(mount)!
  }

  async tree() {
    this.asked.push('tree')
    if (this.away) throw this.away
    const mounts = [...this.mounts].map(([name, files]): TreeMount => {
      const sorted = [...files].toSorted(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b)))
      const some = sorted.slice(0, this.listed)
      const unavailable = this.unavailable.get(name)
      return {
        name,
        readOnly: this.readOnly.has(name),
        files: some.map(([path, text]) => ({ path, bytes: Buffer.byteLength(text), etag: etagOf(text) })),
        complete: some.length === sorted.length,
        ...(unavailable === undefined ? {} : { unavailable }),
      }
    })
    return { mounts, share: this.share }
  }
  async read(mount: string, path: string) {
    this.asked.push(`read ${path}`)
    if (this.away) throw this.away
    const text = this.of(mount).get(path)
    if (text === undefined) return undefined
    const body = (async function* () {
      yield Buffer.from(text)
    })()
    return { etag: etagOf(text), executable: this.executable.has(path), body }
  }
  async write({ mount, path, bytes, executable, body, expected }: Parameters<RemoteFiles['write']>[0]) {
    this.asked.push(`write ${path}`)
    if (this.away) throw this.away
    const refused = this.refused.get(path)
    if (refused !== undefined || !isNewVfsPath(path)) throw workerErrors.fileRefused({ message: refused ?? 'A path.' })
    const said = await buffer(body)
    if (said.length !== bytes) throw new Error(`${bytes} bytes were promised, and ${said.length} came`)
    const there = this.of(mount).get(path)
    if ((there === undefined ? undefined : etagOf(there)) !== expected) return 'changed' as const
    this.of(mount).set(path, said.toString())
    if (executable) this.executable.add(path)
    else this.executable.delete(path)
    return etagOf(said.toString())
  }
  async remove(mount: string, path: string, etag: string) {
    this.asked.push(`remove ${path}`)
    if (this.away) throw this.away
    const there = this.of(mount).get(path)
    if (there !== undefined && etagOf(there) !== etag) return false
    this.of(mount).delete(path)
    return true
  }
}

const etagOf = (text: string): string => createHash('sha256').update(text).digest('hex')
