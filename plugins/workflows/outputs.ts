import { setImmediate as turn } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { TenantTx } from '#contracts/database'
import type { LinkedObjects } from '#contracts/linked-objects'
import type { OpenObject } from '#contracts/object-store'
import type { OutputSchemas } from '#kit/schemas'
import { workflowErrors } from './errors.ts'
import type { WorkflowNode } from './node.schema.ts'
import { type Failure, mostOutput, tooLarge } from './outcome.ts'

/**
 * What begins so stands in a row for an output that is in the object store, since no JSON does: its parts follow, each by its digest
 * and its bytes.
 */
export const linkMark = '@'
/** An object has less than an output may have. */
const partBytes = 4 * 1024 * 1024

type Part = readonly [sha256: string, bytes: number]
const partsIn = (stored: string): readonly Part[] => JSON.parse(stored.slice(linkMark.length)) as readonly Part[]
export const isLinked = (stored: string): boolean => stored.startsWith(linkMark)
/** How many bytes the object store has of it; of what is in its row how many characters. */
export const sizeOf = (stored: string): number =>
  isLinked(stored) ? partsIn(stored).reduce((sum, [, bytes]) => sum + bytes, 0) : stored.length

/** How a node ends whose output was looked at. */
type Kept =
  | { readonly status: 'ok'; readonly output: string }
  | { readonly status: 'error'; readonly error: Failure; readonly output?: never }

interface OutputsDeps {
  readonly links: LinkedObjects | undefined
  readonly schemas: OutputSchemas
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/** Outputs of nodes and runs: small ones are in their rows, large ones in the object store, for as long as their run is there. */
export class Outputs {
  readonly #deps: OutputsDeps
  constructor(deps: OutputsDeps) {
    this.#deps = deps
  }
  /** More characters are kept in the object store; Infinity where there is none. */
  get above(): number {
    return this.#deps.links?.above ?? Infinity
  }

  /** The output of a node as it is stored, or its failure: it is too large, or does not match the schema of the node. */
  async take({ tenantId, runId }: RunKey, spec: WorkflowNode, json: string): Promise<Kept> {
    if (json.length > mostOutput) return { status: 'error', error: tooLarge }
    const schema = 'outputSchema' in spec ? spec.outputSchema : undefined
    const problem = schema && (await this.problem(tenantId, schema, json))
    if (problem !== undefined) {
      return {
        status: 'error',
        error: { code: 'bad_output', message: `The output does not match the outputSchema of the node: ${problem}` },
      }
    }
    return { status: 'ok', output: await this.keep({ tenantId, runId }, json) }
  }
  async problem(
    tenantId: string,
    schema: Readonly<Record<string, unknown>>,
    json: string,
  ): Promise<string | undefined> {
    try {
      return await (await this.#deps.schemas(tenantId, schema)).problemOf(json)
    } catch (error) {
      // Whoever waits for it would wait for ever: that the checking took too much is what is wrong with it.
      if (!isAppError(error) || error.status !== 400) throw error
      return error.sentence ?? error.code
    }
  }

  /** What is stored in the row. Where the store does not take it, that is the output itself: its call was made, and is not made again. */
  async keep({ tenantId, runId }: RunKey, json: string): Promise<string> {
    const { links, log } = this.#deps
    if (!links || json.length <= links.above) return json
    const bytes = Buffer.from(json)
    const contents = []
    for (let at = 0; at < bytes.length; at += partBytes) {
      contents.push({ bytes: bytes.subarray(at, at + partBytes), contentType: 'application/json' })
    }
    await turn()
    try {
      const kept = await links.keep(tenantId, runId, contents)
      return linkMark + JSON.stringify(kept.map(({ sha256, bytes: size }): Part => [sha256, size]))
    } catch (err) {
      if (!isAppError(err)) throw err
      log.warn({ err, tenantId, runId }, 'the object store did not accept a large output; it is kept in its row')
      return json
    }
  }

  /** The JSON of what is stored. Rejects with 410 `output_gone`, and with 503 when the store cannot be reached. */
  async read({ tenantId, runId }: RunKey, stored: string): Promise<string> {
    if (!isLinked(stored)) return stored
    const parts: Buffer[] = []
    for (const [sha256, bytes] of partsIn(stored)) {
      const part = await this.#deps.links?.read(tenantId, runId, { key: sha256, sha256, bytes, contentType: '' })
      if (!part) throw workflowErrors.outputGone()
      parts.push(part)
    }
    await turn()
    return Buffer.concat(parts).toString('utf8')
  }
  /** Outputs as one array. Undefined: it is larger than an output may be. */
  async join(key: RunKey, stored: readonly (string | null)[]): Promise<string | undefined> {
    const parts: string[] = []
    let chars = 1
    for (const one of stored) {
      const part = one === null ? 'null' : await this.read(key, one)
      chars += part.length + 1
      if (chars > mostOutput) return undefined
      parts.push(part)
    }
    return `[${parts.join(',')}]`
  }
  /** The same as it is read, so that nobody holds it whole. Nothing is open until somebody reads. */
  async stream(key: RunKey, stored: string): Promise<AsyncIterable<Uint8Array>> {
    if (!isLinked(stored)) return slicesOf(stored)
    const parts = partsIn(stored)
    // A missing object is reported before the first byte.
    await (await this.#open(key, parts[0]!)).close()
    return this.#contentsOf(key, parts)
  }
  async *#contentsOf(key: RunKey, parts: readonly Part[]): AsyncGenerator<Uint8Array> {
    for (const part of parts) yield* await (await this.#open(key, part)).read()
  }
  async #open({ tenantId, runId }: RunKey, [sha256]: Part): Promise<OpenObject> {
    const found = await this.#deps.links?.open(tenantId, runId, sha256)
    if (!found) throw workflowErrors.outputGone()
    return found
  }

  /** The output of a child as that of the node that it is. */
  async ofChild(key: RunKey, spec: WorkflowNode, child: string, stored: string): Promise<Kept> {
    const { tenantId, runId } = key
    if ('outputSchema' in spec) return this.take(key, spec, await this.read({ tenantId, runId: child }, stored))
    if (isLinked(stored)) {
      await this.#deps.links?.lend(tenantId, {
        from: child,
        to: runId,
        keys: partsIn(stored).map(([sha256]) => sha256),
      })
    }
    return { status: 'ok', output: stored }
  }
  /** Lets a run that is made in a transaction have all that another one has. */
  async lendAll(tx: TenantTx, from: string, to: string): Promise<void> {
    await this.#deps.links?.lend(tx.tenantId, { from, to }, tx)
  }
}

export interface RunKey {
  readonly tenantId: string
  readonly runId: string
}

const sliceChars = 128 * 1024
async function* slicesOf(text: string): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < text.length;) {
    // No character of two halves is divided.
    const end = at + sliceChars
    const next = text.charCodeAt(end - 1) >>> 10 === 0x36 ? end + 1 : end
    yield Buffer.from(text.slice(at, next))
    at = next
  }
}
