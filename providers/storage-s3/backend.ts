import { createReadStream, createWriteStream } from 'node:fs'
import { lstat, mkdtemp, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import pLimit from 'p-limit'
import { isAppError } from '#kernel'
import {
  lastCharacter,
  maxKeyBytes,
  mostObjectsAtOnce,
  type NewObject,
  type ObjectBackend,
  objectErrors,
  type ObjectInfo,
  type ObjectPage,
  type ObjectQuery,
  type OpenObject,
} from '#contracts/object-store'
import { Turns } from '#kit/turns'
import { bytesIn, type Listed, listIn, type S3Client } from './client.ts'

/** How the names of folders of uploads begin. The rest is random, because others may write into a temporary folder, too. */
const uploadName = 'agent-orc-upload-'
/** Uploads older than this many milliseconds were left by a process that died. Others may be of a running process with the same folder. */
const leftOverMs = 24 * 60 * 60 * 1_000
const sha256Header = 'x-amz-meta-sha256'
/** Concurrent requests of one list or deletion. */
const atOnce = 16
/** Milliseconds that a start waits for a server that does not answer. */
const verifyMs = 5_000

/** Objects in a bucket, each tenant's below a root of its own, with their properties in the object metadata. */
export class S3Backend implements ObjectBackend {
  readonly #client: S3Client
  readonly #rootOf: (tenantId: string) => string
  readonly #temporary: string
  /** Becomes false once the server has answered that it does not support conditional writes. */
  #knowsConditions = true
  /** If the server does not support conditions, they hold among the requests of this process. */
  readonly #turns = new Turns()

  /** `temporary` is a folder in which uploads wait until they are whole: only then their length and SHA-256 can be signed. */
  constructor(client: S3Client, rootOf: (tenantId: string) => string, temporary: string) {
    this.#client = client
    this.#rootOf = rootOf
    this.#temporary = temporary
  }

  /** Deletes uploads of dead processes. Those of other users of a shared folder stay. */
  async tidy(): Promise<void> {
    for (const name of await readdir(this.#temporary)) {
      if (!name.startsWith(uploadName)) continue
      const path = join(this.#temporary, name)
      const found = await lstat(path).catch(() => undefined)
      if (found && Date.now() - found.mtimeMs >= leftOverMs)
        await rm(path, { recursive: true, force: true }).catch(() => {})
    }
  }

  async put(tenantId: string, key: string, object: NewObject) {
    if (!this.#fits(tenantId, key)) {
      const max = maxKeyBytes - Buffer.byteLength(this.#keyOf(tenantId, ''))
      throw objectErrors.invalidKey({ message: `A key has at most ${max} bytes of UTF-8 in this bucket.` })
    }
    const folder = await mkdtemp(join(this.#temporary, uploadName)).catch(diskFailed)
    try {
      const path = join(folder, 'object')
      await pipeline(Readable.from(object.body), createWriteStream(path, { mode: 0o600 })).catch(diskFailed)
      const put = () => this.#putFile(tenantId, key, path, object)
      const { ifMatch, ifNoneMatch } = object.when
      const isBare = ifMatch === undefined && ifNoneMatch === undefined
      return await (isBare && this.#knowsConditions ? put() : this.#turns.take(this.#keyOf(tenantId, key), put))
    } finally {
      await rm(folder, { recursive: true, force: true })
    }
  }
  async #putFile(tenantId: string, key: string, path: string, { sha256, contentType, when }: NewObject) {
    const before = await this.#head(tenantId, key)
    const { ifMatch, ifNoneMatch } = when
    const holds = !(ifNoneMatch && before) && (ifMatch === undefined || (before && isTag(ifMatch, before.info)))
    if (!holds) throw objectErrors.preconditionFailed()
    const digest = sha256()
    const { size: bytes } = await stat(path)
    const write = (conditions: Readonly<Record<string, string>>) =>
      this.#client.send({
        method: 'PUT',
        key: this.#keyOf(tenantId, key),
        headers: { 'content-type': contentType, [sha256Header]: digest, ...conditions },
        body: { stream: () => createReadStream(path), bytes, sha256: digest },
        expected: Object.keys(conditions).length > 0 ? [501] : [],
      })
    // A server that supports conditions checks this one when it writes. With other servers another process may write between the check and the
    // write.
    const conditions = {
      ...(ifNoneMatch ? { 'if-none-match': '*' } : {}),
      ...(ifMatch !== undefined ? { 'if-match': before!.tag } : {}),
    }
    const answer = await write(this.#knowsConditions ? conditions : {})
    await answer.body.dump()
    if (answer.statusCode === 501) {
      this.#knowsConditions = false
      await (await write({})).body.dump()
    }
    const info = { key, bytes, contentType, sha256: digest, updatedAt: new Date().toISOString(), etag: digest }
    return { info, replaced: before?.info.bytes }
  }

  async open(tenantId: string, key: string): Promise<OpenObject | undefined> {
    const found = await this.#head(tenantId, key)
    if (!found) return undefined
    const { info, tag } = found
    return {
      info,
      read: async (range) => {
        if (info.bytes === 0) return Readable.from([])
        const headers = { 'if-match': tag, ...(range ? { range: `bytes=${range.from}-${range.to}` } : {}) }
        const expected = [404, 412]
        const answer = await this.#client.send({ method: 'GET', key: this.#keyOf(tenantId, key), headers, expected })
        const { etag, 'content-length': length } = answer.headers
        const bytes = range ? range.to - range.from + 1 : info.bytes
        // Check the answer, because not every server respects the condition or the range.
        const isOther = expected.includes(answer.statusCode) || (etag !== undefined && etag !== tag)
        if (!isOther && length === undefined) return Readable.from(exactly(answer.body, bytes), { objectMode: false })
        if (!isOther && Number(length) === bytes) return answer.body
        answer.body.on('error', () => {}).destroy()
        throw objectErrors.storageUnavailable({ message: 'The object was replaced while it was read; try again.' })
      },
      close: async () => {},
    }
  }

  async list(tenantId: string, { prefix, after, limit, folders }: ObjectQuery): Promise<ObjectPage> {
    // One for all of it: a list may have a thousand objects, and the server may be a tenant's.
    const signal = this.#client.deadline()
    const { objects, prefixes, truncated } = await this.#list(tenantId, prefix, after, limit, folders, signal)
    const slots = pLimit(atOnce)
    // An object that was deleted since the list is left out.
    const infos = await Promise.all(objects.map(({ key }) => slots(() => this.#head(tenantId, key, signal))))
    const last = [...objects.map(({ key }) => key), ...prefixes.map((one) => one + lastCharacter)]
      .map((text) => Buffer.from(text))
      .reduce<Buffer | undefined>((most, one) => (most && most.compare(one) > 0 ? most : one), undefined)
    return {
      objects: infos.flatMap((found) => (found ? [found.info] : [])),
      prefixes,
      ...(truncated && last ? { next: last.toString() } : {}),
    }
  }

  async remove(tenantId: string, key: string, ifMatch?: string, signal?: AbortSignal): Promise<number | undefined> {
    if (ifMatch !== undefined) {
      return this.#turns.take(this.#keyOf(tenantId, key), () => this.#removeIf(tenantId, key, ifMatch, signal))
    }
    const found = await this.#head(tenantId, key, this.#until(signal))
    if (!found) return undefined
    await this.#delete(tenantId, key, {}, signal)
    return found.info.bytes
  }
  // A server without conditional deletion ignores the condition, or says so.
  async #removeIf(
    tenantId: string,
    key: string,
    ifMatch: string,
    signal: AbortSignal | undefined,
  ): Promise<number | undefined> {
    const found = await this.#head(tenantId, key, this.#until(signal))
    if (!found) return undefined
    if (!isTag(ifMatch, found.info)) throw objectErrors.preconditionFailed()
    const status = await this.#delete(tenantId, key, { 'if-match': found.tag }, signal)
    if (status === 412) throw objectErrors.preconditionFailed()
    if (status === 501) await this.#delete(tenantId, key, {}, signal)
    return found.info.bytes
  }

  async removeAll(tenantId: string, prefix: string, most: number, signal?: AbortSignal) {
    const limit = Math.min(most, mostObjectsAtOnce)
    const { objects, truncated } = await this.#list(tenantId, prefix, '', limit, false, this.#until(signal))
    const slots = pLimit(atOnce)
    let failure: unknown
    const ends = objects.map(({ key }) =>
      slots(async () => {
        // One that fails is the last one that is begun. Those under way are waited for: none is left when this has ended.
        if (failure !== undefined) return false
        try {
          await this.#delete(tenantId, key, {}, signal)
        } catch (error) {
          failure = error
          return false
        }
        return true
      }),
    )
    const isGone = await Promise.all(ends)
    const gone = objects.filter((_, i) => isGone[i])
    if (failure !== undefined && gone.length === 0) throw failure
    return { objects: gone.length, bytes: sum(gone), more: truncated || failure !== undefined }
  }

  async use(tenantId: string) {
    const use = { bytes: 0, objects: 0 }
    for (let after: string | undefined = ''; after !== undefined;) {
      const { objects, truncated }: Listed = await this.#list(tenantId, '', after, mostObjectsAtOnce, false)
      use.bytes += sum(objects)
      use.objects += objects.length
      after = truncated ? objects.at(-1)?.key : undefined
    }
    return use
  }

  async verify(): Promise<void> {
    const signal = AbortSignal.timeout(verifyMs)
    try {
      const query = { 'list-type': '2', 'max-keys': '1', prefix: this.#keyOf('', '') }
      await (await this.#client.send({ method: 'GET', key: '', query, signal })).body.dump()
    } catch (error) {
      if (isAppError(error) && error.code === 'storage_misconfigured') throw error
    }
  }

  /** Ends a request when the caller says so, and at its usual time. */
  #until(signal: AbortSignal | undefined): AbortSignal {
    const deadline = this.#client.deadline()
    return signal ? AbortSignal.any([signal, deadline]) : deadline
  }
  #keyOf(tenantId: string, key: string): string {
    return `${this.#rootOf(tenantId)}${key}`
  }
  /** Whether the key fits together with its root, which for the server is part of the key. */
  #fits(tenantId: string, key: string): boolean {
    return Buffer.byteLength(this.#keyOf(tenantId, key)) <= maxKeyBytes
  }

  async #list(
    tenantId: string,
    prefix: string,
    after: string,
    limit: number,
    folders: boolean,
    signal = this.#client.deadline(),
  ): Promise<Listed> {
    if (!this.#fits(tenantId, prefix)) return { objects: [], prefixes: [], truncated: false }
    const root = this.#keyOf(tenantId, '')
    // Consoles create an object with a folder's name to mark the folder. The marker of the root itself belongs to nobody.
    const start = root + after
    const { body } = await this.#client.send({
      method: 'GET',
      key: '',
      query: {
        'list-type': '2',
        'encoding-type': 'url',
        'max-keys': String(limit),
        prefix: root + prefix,
        ...(start === '' ? {} : { 'start-after': start }),
        ...(folders ? { delimiter: '/' } : {}),
      },
      signal,
    })
    const { objects, prefixes, truncated } = await listIn(body)
    // Ignore keys that were not asked for: the server may belong to a tenant and answer anything.
    const isAsked = (key: string): boolean => key.startsWith(root + prefix)
    return {
      objects: objects
        .filter(({ key }) => isAsked(key))
        .slice(0, limit)
        .map(({ key, bytes }) => ({ key: key.slice(root.length), bytes })),
      prefixes: prefixes
        .filter(isAsked)
        .slice(0, limit)
        .map((one) => one.slice(root.length)),
      truncated,
    }
  }

  async #head(
    tenantId: string,
    key: string,
    signal?: AbortSignal,
  ): Promise<{ info: ObjectInfo; tag: string } | undefined> {
    if (!this.#fits(tenantId, key)) return undefined
    const { statusCode, headers, body } = await this.#client.send({
      method: 'HEAD',
      key: this.#keyOf(tenantId, key),
      expected: [404],
      ...(signal ? { signal } : {}),
    })
    await body.dump()
    if (statusCode === 404) return undefined
    const bytes = bytesIn(headers['content-length'])
    if (bytes === undefined)
      throw objectErrors.storageUnavailable({ message: 'The S3 server does not say how long the object is.' })
    const tag = String(headers['etag'])
    const sha256 = headers[sha256Header]
    const known = typeof sha256 === 'string' && /^[0-9a-f]{64}$/.test(sha256) ? { sha256 } : {}
    const info = {
      key,
      bytes,
      contentType: String(headers['content-type'] ?? 'application/octet-stream'),
      ...known,
      updatedAt: new Date(Date.parse(String(headers['last-modified'])) || 0).toISOString(),
      etag: known.sha256 ?? tag.replaceAll('"', ''),
    }
    return { info, tag }
  }

  /** Resolves to the server's status. An object that is already gone counts as deleted. */
  async #delete(
    tenantId: string,
    key: string,
    headers: Readonly<Record<string, string>>,
    signal: AbortSignal | undefined,
  ): Promise<number> {
    const { statusCode, body } = await this.#client.send({
      method: 'DELETE',
      key: this.#keyOf(tenantId, key),
      headers,
      signal: this.#until(signal),
      expected: [404, ...(headers['if-match'] === undefined ? [] : [412, 501])],
    })
    await body.dump()
    return statusCode
  }
}

const isTag = (wanted: string, { etag }: ObjectInfo): boolean => wanted === '*' || wanted === etag
const sum = (objects: Listed['objects']): number => objects.reduce((all, { bytes }) => all + bytes, 0)

/** Wraps an error of the upload folder. Errors of the body itself pass unchanged. */
function diskFailed(cause: unknown): never {
  const { code, syscall } = cause as NodeJS.ErrnoException
  if (isAppError(cause) || syscall === undefined) throw cause
  throw code === 'ENOSPC' || code === 'EDQUOT'
    ? objectErrors.storageFull({ cause })
    : objectErrors.storageUnavailable({ cause })
}

/** Sends exactly the announced number of bytes: the server would read more as the next request on the connection. */
async function* exactly(body: AsyncIterable<Uint8Array>, bytes: number): AsyncGenerator<Uint8Array> {
  let left = bytes
  for await (const chunk of body) {
    left -= chunk.length
    if (left < 0) break
    yield chunk
  }
  if (left !== 0) throw objectErrors.storageUnavailable({ message: 'The object store gives other bytes than it said.' })
}
