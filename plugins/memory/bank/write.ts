import { createHash } from 'node:crypto'
import { setImmediate as turn } from 'node:timers/promises'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import { nothingToKeep, unknownSuperseded } from '../errors.ts'
import type { MemoryModel } from '../model.ts'
import type { Metrics } from '../metrics.ts'
import { type CreateMemory, type Memory, type NotStored, timeOf } from '../schema.ts'
import { factOf, isTold } from '../text/facts.ts'
import { type Junk, junkOf, mostContent, statementsOf, tidied, withoutRecalled } from '../text/statements.ts'
import type { StemCache } from '../text/stems.ts'
import { essenceOf, recordTerms, withContext } from '../text/terms.ts'
import { wordsAlone, wordsOf } from '../text/words.ts'
import { byIndex, type MemoryRow, personOf, toMemory } from './rows.ts'
import {
  type Draft,
  insert,
  lock,
  lookBefore,
  lookNear,
  lookOld,
  openBank,
  refusal,
  supersede,
  valuesOf,
  why,
} from './statements.ts'

/** The analysis of a raw input with more characters takes long, so the event loop is released before it. */
const longChars = 8_000
/** So is it before a statement with more characters is divided into words, of which one character may have five. */
const longStatement = 1_000
/** The cost of a write in requests, beyond the request itself. The memory is compared with similar ones, and each of its terms becomes a row. */
const turnsOf = ({ terms }: Draft): number => 2 + Math.ceil(terms.terms.length / 50)
/** The bytes that one term of a memory takes: its own row, and its part of the memory's row. */
const bytesOfTerm = 150
/** The most statements of one message that are remembered. */
const mostTold = 10

export type Created = ({ readonly stored: true } & Memory) | NotStored

/** A stored memory that may say the same, or that the new one may supersede. */
interface Neighbour {
  readonly id: string
  readonly content: string
  readonly source: 'curated' | 'mined'
  readonly fact: string | null
  readonly at: string
}

interface Looked {
  readonly near: readonly Neighbour[]
  readonly context: readonly string[]
  /** The id of the superseded memory that the caller names, if that memory belongs to this profile. */
  readonly superseded: string | undefined
}

/** Why nothing was inserted. */
interface Why {
  readonly same: string | null
  readonly records: number
  readonly erased: boolean
}
interface How {
  /** The write waits for its turn under the rate limit, however long that takes. */
  readonly patient?: boolean
  /** The memory comes from the run that its input names. It is not stored if its end user was erased since the run began. */
  readonly ofRun?: boolean
}

interface WriterParts {
  readonly database: Database
  readonly stems: StemCache
  /** Undefined in a server without a memory model: then rules alone make memories from texts. */
  readonly model: MemoryModel | undefined
  readonly limits: TenantLimits | undefined
  readonly metrics: Metrics
}

/** Writes memories. It extracts what is worth keeping, stores each statement once, and supersedes statements that a new one corrects. */
export class Writer {
  readonly #parts: WriterParts

  constructor(parts: WriterParts) {
    this.#parts = parts
  }

  /** Stores a memory. `stored: false` is not an error: there was nothing to keep. Rejects with 409 `limit_exceeded`, or 400 for invalid input. */
  async create(tenantId: string, profile: string, input: CreateMemory, how: How = {}): Promise<Created> {
    if (input.rawInput === undefined && input.processedContent === undefined) throw nothingToKeep()
    const made = await this.#contentOf(tenantId, input)
    return 'junk' in made ? this.#refuse(tenantId, made.junk) : this.#keep(tenantId, profile, input, made, how)
  }
  /** Whether a model reads the texts of this tenant. */
  asksModel(tenantId: string): boolean {
    return this.#parts.model?.isFor(tenantId) ?? false
  }
  /**
   * Stores each statement of what a person said to an agent. Statements that repeat memories recalled in the conversation are skipped. Rejects with
   * 409 `limit_exceeded`.
   */
  async learn(
    tenantId: string,
    profile: string,
    { said, recalled }: { readonly said: string; readonly recalled: readonly string[] },
    origin: Pick<CreateMemory, 'endUserId' | 'sessionId' | 'runId' | 'eventAt'>,
  ): Promise<void> {
    const made = statementsOf(said)
    if ('junk' in made) return void (await this.#refuse(tenantId, made.junk))
    const byModel = await this.#parts.model?.process(tenantId, withoutRecalled(said))
    const statements = byModel?.split('\n') ?? made.content.split('\n').filter(isTold)
    const known = recalled.flatMap((text) => text.split('\n')).map(wordsAlone)
    for (const content of statements.slice(0, mostTold)) {
      const junk = known.some((one) => repeats(wordsAlone(content), one)) ? 'recalled' : junkOf(content)
      if (junk) await this.#refuse(tenantId, junk)
      else {
        const made = { content: content.slice(0, mostContent), source: 'mined' } as const
        await this.#keep(tenantId, profile, origin, made, { patient: true, ofRun: true })
      }
    }
  }

  async #refuse(tenantId: string, junk: Junk | 'erased'): Promise<Created> {
    const { database, metrics } = this.#parts
    await database.batch(tenantId, [refusal(tenantId, junk)])
    metrics.written('junk')
    return { stored: false, reason: 'junk', detail: junk }
  }
  async #keep(
    tenantId: string,
    profile: string,
    input: CreateMemory,
    made: { readonly content: string; readonly source: Draft['source'] },
    { ofRun = false, ...waits }: How = {},
  ): Promise<Created> {
    this.#parts.limits?.stored.admit(tenantId)
    const draft = await this.#draft(tenantId, input, made)
    await this.#parts.limits?.turn(tenantId, 'writesPerMinute', turnsOf(draft), waits)
    const looked = await this.#look(tenantId, profile, input, draft)
    const outcome = await this.#place(tenantId, draft, looked)
    if ('duplicate' in outcome) return this.#duplicate(tenantId, outcome.duplicate, draft.source)
    return this.#store(
      tenantId,
      profile,
      input,
      { ...draft, terms: withContext(draft.terms, looked.context), ofRun },
      outcome,
    )
  }

  /** The part of the input that is kept. */
  async #contentOf(
    tenantId: string,
    { rawInput, processedContent }: CreateMemory,
  ): Promise<{ content: string; source: Draft['source'] } | { junk: Junk }> {
    if (processedContent !== undefined) {
      const own = withoutRecalled(tidied(processedContent)).trim()
      const junk = junkOf(processedContent)
      return junk ? { junk } : { content: own.slice(0, mostContent), source: 'curated' }
    }
    const made = statementsOf(rawInput!)
    if ('junk' in made || !this.#parts.model) return 'junk' in made ? made : { content: made.content, source: 'mined' }
    // If the model cannot be reached or finds nothing, the statements that the rules found are kept.
    const said = await this.#parts.model.process(tenantId, withoutRecalled(rawInput!.toWellFormed()))
    return { content: said?.slice(0, mostContent) ?? made.content, source: 'mined' }
  }
  async #draft(
    tenantId: string,
    input: CreateMemory,
    { content, source }: { content: string; source: Draft['source'] },
  ): Promise<Draft> {
    const { stems } = this.#parts
    const at = input.eventAt === undefined ? new Date() : timeOf(input.eventAt, 'body/eventAt')
    const raw = input.rawInput === undefined ? undefined : withoutRecalled(input.rawInput.toWellFormed())
    if ((raw?.length ?? 0) > longChars) await turn()
    const terms = await recordTerms(tenantId, stems, {
      content,
      raw,
      summary: input.summary,
      category: input.category,
      at,
    })
    const essence = await this.#essenceOf(tenantId, content, at)
    const words = wordsOf(content).map(({ text }) => text)
    const times = essence.filter((term) => term.startsWith('#'))
    return {
      id: newId('mem'),
      content,
      source,
      at,
      person: personOf(input.endUserId),
      digest: createHash('sha256')
        .update([...words, ...times].join(' '))
        .digest(),
      essence,
      fact: factOf(content)?.key,
      terms,
    }
  }
  async #essenceOf(tenantId: string, content: string, at: Date): Promise<readonly string[]> {
    if (content.length > longStatement) await turn()
    return essenceOf(tenantId, this.#parts.stems, content, at)
  }
  /** Reads stored memories that are related to the draft, in one round trip and without locks. */
  async #look(
    tenantId: string,
    profile: string,
    { endUserId, sessionId, supersedes }: CreateMemory,
    { person, digest, fact, essence }: Draft,
  ): Promise<Looked> {
    const rare = [...new Set(essence)].slice(0, 60)
    type Answer = [object[], Neighbour[], { terms: string[] }[], { id: string }[]]
    const [, near, before, old] = await this.#parts.database.batch<Answer>(tenantId, [
      byIndex,
      { ...lookNear, values: [tenantId, profile, person, endUserId ?? null, digest, fact ?? null, rare] },
      { ...lookBefore, values: [tenantId, sessionId ?? null, profile] },
      { ...lookOld, values: [tenantId, profile, supersedes ?? null] },
    ])
    if (supersedes !== undefined && old.length === 0) throw unknownSuperseded()
    return { near, context: before[0]?.terms ?? [], superseded: old[0]?.id }
  }
  /** Decides whether the draft is a duplicate, supersedes stored memories, or is itself superseded by a newer one. */
  async #place(tenantId: string, draft: Draft, { near, superseded }: Looked): Promise<Placed> {
    const replaced = new Set(superseded === undefined ? [] : [superseded])
    let by: string | undefined
    for (const other of near) {
      if (replaced.has(other.id)) continue
      const essence = await this.#essenceOf(tenantId, other.content, new Date(other.at))
      const relation = compare(draft, { ...other, essence })
      if (relation === 'same') return { duplicate: other.id }
      // A mined statement never supersedes a curated one.
      if (relation === 'other' || (draft.source === 'mined' && other.source === 'curated')) continue
      if (draft.at.getTime() < new Date(other.at).getTime()) by ??= other.id
      else replaced.add(other.id)
    }
    return { replaced: [...replaced], by }
  }
  /** Handles a duplicate. A curated duplicate of a mined memory makes that memory curated. */
  async #duplicate(tenantId: string, id: string, source: Draft['source']): Promise<Created> {
    const vouch = {
      name: 'memory-vouch',
      text: `UPDATE memories SET source = 'curated', confidence = greatest(confidence, 1)
             WHERE tenant_id = $1 AND id = $2 AND source = 'mined'`,
      values: [tenantId, id],
    }
    await this.#parts.database.batch(tenantId, [
      refusal(tenantId, 'duplicate'),
      ...(source === 'curated' ? [vouch] : []),
    ])
    this.#parts.metrics.written('duplicate')
    return { stored: false, reason: 'duplicate', id }
  }
  async #store(
    tenantId: string,
    profile: string,
    input: CreateMemory,
    draft: Draft,
    { replaced, by }: Exclude<Placed, { duplicate: string }>,
  ): Promise<Created> {
    const { database, limits, metrics } = this.#parts
    const { memories: most, memoryBytes: mostBytes } = limits?.of(tenantId) ?? defaultLimits
    const bytes = [draft.content, input.rawInput, input.summary].reduce(
      (sum, text) => sum + Buffer.byteLength(text ?? ''),
      0,
    )
    const values = valuesOf(tenantId, profile, input, draft, { bytes, most, mostBytes, supersedes: replaced[0], by })
    type Answer = [object[], object[], object[], MemoryRow[], object[], Why[]]
    const [, , , [row], , [found]] = await database.batch<Answer>(tenantId, [
      byIndex,
      { ...lock, values: [tenantId] },
      { ...openBank, values: [tenantId, profile] },
      { ...insert, values },
      { ...supersede, values: [tenantId, replaced, draft.id] },
      { ...why, values: [tenantId, profile, draft.person, input.endUserId ?? null, draft.digest, values[26]] },
    ])
    if (row) {
      metrics.written('stored')
      limits?.stored.add(tenantId, 2 * bytes + draft.terms.terms.length * bytesOfTerm)
      return { stored: true, ...toMemory(row) }
    }
    if (found!.erased) return this.#refuse(tenantId, 'erased')
    if (found!.same !== null) return this.#duplicate(tenantId, found!.same, draft.source)
    throw found!.records >= most ? overLimit('memories', most) : overLimit('memoryBytes', mostBytes)
  }
}

/** True if a statement is part of a recalled memory, or contains a recalled memory and only a few more words. */
const repeats = (said: string, recalled: string): boolean =>
  ` ${recalled} `.includes(` ${said} `) ||
  (` ${said} `.includes(` ${recalled} `) && recalled.length * 1.5 > said.length)

type Placed = { readonly duplicate: string } | { readonly replaced: readonly string[]; readonly by: string | undefined }

/** The parts of a statement that are compared. */
interface Compared {
  readonly content: string
  readonly essence: readonly string[]
  readonly fact?: string | null | undefined
}

/** Two statements say the same only if the shorter one has this share of the longer one's words. */
const share = 0.75
/** The fewest words for a comparison by shares. Shorter statements may differ in their only significant word. */
const fewest = 3

const negations =
  /(?<!\p{L})(?:not|no|never|without|neither|nor|cannot|no longer|nicht|kein\p{L}*|nie|niemals|ohne|nunca|jamás|sin|ya no|не|нет|никогда|без)(?!\p{L})|n['’]t(?!\p{L})|[不没无非未别]/giu
const isNegated = (text: string): boolean => (text.match(negations)?.length ?? 0) % 2 === 1

/**
 * Compares a new statement with a stored one. `same`: the stored statement already says it. `newer`: the new statement supersedes the stored one,
 * because it says more, contradicts it, or gives a new value to a property with one value at a time. `other`: both are kept.
 */
export function compare(added: Compared, known: Compared): 'same' | 'newer' | 'other' {
  const contrary = isNegated(added.content) !== isNegated(known.content)
  const [a, b] = [added.essence, known.essence]
  if (sameWords(a, b)) return contrary ? 'newer' : 'same'
  const [less, more] = a.length <= b.length ? [a, b] : [b, a]
  const contained = less.length >= fewest && less.length >= share * more.length && isWithin(less, more)
  if (contained && contrary) return 'newer'
  // An additional number or time makes a different statement, so both statements are kept.
  if (contained && !extra(less, more).some((word) => /[\p{N}#]/u.test(word))) return less === a ? 'same' : 'newer'
  return added.fact && added.fact === known.fact ? 'newer' : 'other'
}

const sameWords = (a: readonly string[], b: readonly string[]): boolean =>
  a.length > 0 && a.length === b.length && a.every((word, i) => word === b[i])

/** True if all words of the shorter statement are in the longer one, in the same order. The order matters: "Ann loves Bob" is not "Bob loves Ann". */
function isWithin(less: readonly string[], more: readonly string[]): boolean {
  let at = 0
  for (const word of more) if (word === less[at]) at++
  return at === less.length
}
/** The words of the longer statement that the shorter one does not have, or has less often. */
function extra(less: readonly string[], more: readonly string[]): string[] {
  const rest = new Map<string, number>()
  for (const word of less) rest.set(word, (rest.get(word) ?? 0) + 1)
  return more.filter((word) => {
    const left = rest.get(word) ?? 0
    if (left > 0) rest.set(word, left - 1)
    return left === 0
  })
}
