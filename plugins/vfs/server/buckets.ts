import { isAppError } from '#kernel'
import type { Buckets, BucketSettings, ObjectBackend } from '#contracts/object-store'
import { secretOf, type Secrets } from '#contracts/secrets'
import { vfsErrors } from '#contracts/vfs'
import { Type } from '@sinclair/typebox'
import { vfsService } from '#contracts/auth'
import { signedHeaders, type Signer } from '#contracts/signing'
import type { Route } from '#contracts/wire/route'
import { createPeers, signedBy } from '#kit'

type Bucket = ReturnType<Buckets['open']>
/** The bucket settings of a mount. Bucket and credentials are optional, and credentials may be references to secrets. */
type Wanted = Omit<BucketSettings, 'uploads' | 'bucket' | 'accessKeyId' | 'secretAccessKey'> &
  Partial<Pick<BucketSettings, 'bucket' | 'accessKeyId' | 'secretAccessKey'>>

interface Pooled {
  /** The settings with which the bucket was opened, as JSON, to notice a change. */
  readonly settings: string
  readonly bucket: Bucket
  readonly resolvedAt: number
}

/** Connections to this many buckets are kept; the least recently used are closed. */
const mostOpen = 200
/** Milliseconds for which credentials are cached, so that a rotated secret is soon used. */
const freshMs = 30_000

/** The buckets behind mounts, opened with the current values of their secrets. */
export class BucketPool {
  readonly #buckets: Buckets | undefined
  readonly #uploads: string
  readonly #secret: (tenantId: string, reference: string) => Promise<string>
  readonly #open = new Map<string, Promise<Pooled>>()

  /** `uploads` is the folder in which uploads to all buckets wait. */
  constructor(
    buckets: Buckets | undefined,
    uploads: string,
    secret: (tenantId: string, reference: string) => Promise<string>,
  ) {
    this.#buckets = buckets
    this.#uploads = uploads
    this.#secret = secret
  }

  async open(tenantId: string, mount: string, wanted: Wanted): Promise<ObjectBackend> {
    const key = `${tenantId}\n${mount}`
    const known = this.#open.get(key)
    const pooled = await known?.catch(() => undefined)
    if (pooled && Date.now() - pooled.resolvedAt < freshMs) {
      this.#open.delete(key)
      this.#open.set(key, known!)
      return pooled.bucket
    }
    // Another caller has begun to open this bucket, so this caller waits for the same bucket.
    if (this.#open.get(key) !== known) return this.open(tenantId, mount, wanted)
    const opening = this.#renew(tenantId, wanted, pooled)
    this.#open.delete(key)
    this.#open.set(key, opening)
    opening.catch(() => {
      if (this.#open.get(key) === opening) this.#open.delete(key)
    })
    if (this.#open.size > mostOpen) await this.#close(this.#open.keys().next().value!)
    return (await opening).bucket
  }

  /** Checks without a request whether a bucket can be opened with these settings. Returns the reason if it cannot. */
  problemOf(wanted: Wanted): string | undefined {
    try {
      void this.#opened({ ...wanted, accessKeyId: 'x', secretAccessKey: 'x' }).close()
      return undefined
    } catch (error) {
      return isAppError(error)
        ? error.message
        : 'has an endpoint that may not be called: it must be https and a public host, unless the operator names it'
    }
  }

  async forget(tenantId: string, mount: string): Promise<void> {
    await this.#close(`${tenantId}\n${mount}`)
  }
  async close(): Promise<void> {
    await Promise.all([...this.#open.keys()].map((key) => this.#close(key)))
  }

  async #close(key: string): Promise<void> {
    const pooled = await this.#open.get(key)?.catch(() => undefined)
    this.#open.delete(key)
    void pooled?.bucket.close().catch(() => {})
  }

  async #renew(tenantId: string, wanted: Wanted, before: Pooled | undefined): Promise<Pooled> {
    const resolved = {
      ...wanted,
      accessKeyId: await this.#resolved(tenantId, wanted.accessKeyId),
      secretAccessKey: await this.#resolved(tenantId, wanted.secretAccessKey),
    }
    const settings = JSON.stringify(resolved)
    if (before?.settings === settings) return { ...before, resolvedAt: Date.now() }
    void before?.bucket.close().catch(() => {})
    return { settings, bucket: this.#opened(resolved), resolvedAt: Date.now() }
  }

  async #resolved(tenantId: string, text = ''): Promise<string> {
    return secretOf(text) === undefined ? text : this.#secret(tenantId, text)
  }

  #opened({ bucket, endpoint, region, prefix, reach, accessKeyId, secretAccessKey }: Wanted): Bucket {
    if (!this.#buckets) throw vfsErrors.mountUnavailable({ message: 'This server has no plugin for buckets.' })
    if (!bucket || !accessKeyId || !secretAccessKey)
      throw vfsErrors.mountUnavailable({ message: 'The mount lacks its bucket or its credentials.' })
    const uploads = this.#uploads
    return this.#buckets.open({ endpoint, region, bucket, prefix, reach, accessKeyId, secretAccessKey, uploads })
  }
}

const resolve = {
  method: 'POST',
  path: '/internal/secrets/resolve',
  access: vfsService,
  tags: ['secrets'],
  summary: 'Resolve a secret',
  body: Type.Object({ ref: Type.String() }),
  reply: { status: 200, json: Type.Object({ value: Type.String() }) },
} as const satisfies Route

/** Resolves the secrets of tenants to which mounts refer. */
interface MountSecrets {
  /** The value of `secret://name`; `mount_unavailable` (503) when it cannot be resolved. */
  resolve(tenantId: string, reference: string): Promise<string>
  close(): Promise<void>
}

/** Resolves secrets with the conductor in this process, or with another conductor over signed requests. Without either, no secret can be resolved. */
export function createSecrets(
  local: Secrets | undefined,
  conductorUrl: string | undefined,
  signer: Signer,
): MountSecrets {
  if (local) {
    return {
      resolve: async (tenantId, reference) =>
        (await local.resolve(tenantId, secretOf(reference) ?? '', 'vfs').catch(refused(reference))).value,
      close: async () => {},
    }
  }
  if (!conductorUrl) return { resolve: async (_, reference) => refused(reference)(undefined), close: async () => {} }
  const peers = createPeers({
    connectMs: 2_000,
    timeoutMs: 10_000,
    links: false,
    identity: signedBy(signer, signedHeaders.tenant),
    faults: {
      lost: ({ cause }) =>
        vfsErrors.mountUnavailable({
          message: 'The conductor, which has the secrets, cannot be reached.',
          retryable: true,
          cause,
        }),
      failed: () =>
        vfsErrors.mountUnavailable({ message: 'The conductor, which has the secrets, answered something else.' }),
    },
  })
  const conductor = peers.at(conductorUrl)
  return {
    async resolve(tenant, ref) {
      const answer = await conductor.ask(resolve, { tenant, body: { ref } }).catch(refused(ref))
      return answer.value
    },
    close: () => peers.close(),
  }
}

const refused =
  (reference: string) =>
  (cause: unknown): never => {
    if ((cause as { code?: unknown } | undefined)?.code === vfsErrors.mountUnavailable.row.code) throw cause
    throw vfsErrors.mountUnavailable({
      message: `The mount refers to ${reference}, which cannot be resolved for this tenant.`,
      cause,
    })
  }
