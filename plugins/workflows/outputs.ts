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
 * Marks a stored output as a link to the object store; no JSON begins with this character. After it comes the list of its parts, each with digest and
 * bytes.
 */
export const linkMark = '@'
/** Bytes of one object. An output may be larger, and is then split into several objects. */
const partBytes = 4 * 1024 * 1024

type Part = readonly [sha256: string, bytes: number]
const partsIn = (stored: string): readonly Part[] => JSON.parse(stored.slice(linkMark.length)) as readonly Part[]
export const isLinked = (stored: string): boolean => stored.startsWith(linkMark)
/** The size of a stored output: bytes when it is in the object store, characters when it is in its row. */
export const sizeOf = (stored: string): number =>
  isLinked(stored) ? partsIn(stored).reduce((sum, [, bytes]) => sum + bytes, 0) : stored.length

/** The result of checking an output: its stored form, or the failure of its node. */
type Kept =
  | { readonly status: 'ok'; readonly output: string }
  | { readonly status: 'error'; readonly error: Failure; readonly output?: never }

interface OutputsDeps {
  readonly links: LinkedObjects | undefined
  readonly schemas: OutputSchemas
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/** Stores the outputs of nodes and runs: small ones in their rows, large ones in the object store. They are kept as long as their run. */
export class Outputs {
  readonly #deps: OutputsDeps
  constructor(deps: OutputsDeps) {
    this.#deps = deps
  }
  /** Outputs with more characters than this go to the object store. Infinity: there is no object store. */
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
      // A check that takes too much counts as a problem of the output. If it rejected instead, the node would wait for its outcome for ever.
      if (!isAppError(error) || error.status !== 400) throw error
      return error.sentence ?? error.code
    }
  }

  /** Returns the stored form of an output. If the object store refuses the output, it stays in its row: its call was made and must not be repeated. */
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

  /** Reads the JSON of a stored output. Rejects with 410 `output_gone`, and with 503 when the store cannot be reached. */
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
  /** Joins stored outputs to one JSON array. Undefined: the array is larger than an output may be. */
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
  /** Streams an output from the object store, so that no process holds it whole. An object is opened only when its bytes are read. */
  async stream(key: RunKey, stored: string): Promise<AsyncIterable<Uint8Array>> {
    const parts = partsIn(stored)
    // Opens the first object and closes it again, so that a missing object is reported before the first byte is sent.
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

  /** Converts the output of a child run to the output of its node. Linked objects of the child are lent to the parent run. */
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
  /** Lends all objects of a run to another run, which this transaction creates. */
  async lendAll(tx: TenantTx, from: string, to: string): Promise<void> {
    await this.#deps.links?.lend(tx.tenantId, { from, to }, tx)
  }
}

export interface RunKey {
  readonly tenantId: string
  readonly runId: string
}
