import { Ajv, type ValidateFunction } from 'ajv'
import { isAppError } from '#kernel'
import type { ConductorCaller, ConductorTool } from '#contracts/conductor-tools'
import type { ToolResult } from '#contracts/tools'
import type { MemoryBank } from './bank/bank.ts'
import { notTheirs } from './errors.ts'
import { type Hit, timeOf } from './schema.ts'
import { memoryForget, memorySave, memorySearch } from './tool-specs.ts'

/** The most tokens that one search answer may take of a model's context. */
const mostTokens = 4_000

const ok = (content: string): ToolResult => ({ ok: true, content })
const failed = (content: string): ToolResult => ({ ok: false, content })

/** The memories that an agent sees, by the profile of its session and by the end user of its run. */
const scopeOf = ({ profile, endUserId }: Pick<ConductorCaller, 'profile' | 'endUserId'>) =>
  hasAll({ profile }) ? {} : { ...(endUserId === undefined ? {} : { endUserId }), shared: true }

/**
 * The conductor's part of the tools. An agent reads the memories in its scope. It saves, corrects and deletes only memories of its end user, so
 * that nobody changes the memories of others. A visitor without an id cannot change the memories that everybody is told.
 */
export function conductorTools(bank: MemoryBank): Record<string, ConductorTool> {
  const ajv = new Ajv({ strict: false, useDefaults: true, logger: false })
  return {
    [memorySearch.name]: checked(ajv, memorySearch, async (input, caller) => {
      const { query, limit, category, from, to, history } = input as unknown as Searched
      const hits = await bank.search('tool', caller.tenantId, caller.profile.name, {
        ...scopeOf(caller),
        q: query,
        limit,
        minScore: 0.05,
        maxTokens: mostTokens,
        now: new Date(),
        includeSuperseded: history,
        ...(category === undefined ? {} : { category }),
        ...(from === undefined ? {} : { from: timeOf(from, 'from') }),
        ...(to === undefined ? {} : { to: timeOf(to, 'to') }),
      })
      return ok(hits.length === 0 ? 'Nothing is remembered that fits.' : hits.map(lineOf).join('\n'))
    }),
    [memorySave.name]: checked(ajv, memorySave, async (input, caller) => {
      const { content, ...more } = input as {
        content: string
        category?: string
        eventAt?: string
        supersedes?: string
      }
      const { tenantId, profile, sessionId, runId, endUserId, visitor } = caller
      if (visitor && endUserId === undefined && !hasAll(caller))
        return failed('That was not stored: this conversation names no end user to whom it would belong.')
      if (more.supersedes !== undefined) await theirs(bank, caller, more.supersedes)
      const origin = { sessionId, runId, ...(endUserId === undefined ? {} : { endUserId }) }
      const made = await bank.create(tenantId, profile.name, { processedContent: content, ...more, ...origin }, true)
      if (made.stored)
        return ok(`Remembered as ${made.id}.${made.supersedes ? ` It takes the place of ${made.supersedes}.` : ''}`)
      if (made.reason === 'duplicate') return ok(`That is remembered already, as ${made.id}.`)
      return failed('That was not kept: there is nothing in it to remember.')
    }),
    [memoryForget.name]: checked(ajv, memoryForget, async (input, caller) => {
      const id = String(input['id'])
      await theirs(bank, caller, id)
      const gone = await bank.remove(caller.tenantId, caller.profile.name, id, true)
      return ok(gone === 1 ? 'It is forgotten.' : `It is forgotten, with ${gone - 1} older of the same.`)
    }),
  }
}

interface Searched {
  readonly query: string
  readonly limit: number
  readonly category?: string
  readonly from?: string
  readonly to?: string
  readonly history: boolean
}

/** True if all users of the profile share all of its memories. */
const hasAll = ({ profile }: Pick<ConductorCaller, 'profile'>): boolean => profile.memory?.scope === 'profile'

/**
 * Rejects if the caller may not change the memory. A memory outside the caller's scope is answered with 404, like an unknown one. A memory without
 * an end user is changed only by a run that the tenant itself started without an end user.
 */
async function theirs(bank: MemoryBank, caller: ConductorCaller, id: string): Promise<void> {
  const { tenantId, profile, endUserId, visitor } = caller
  const found = await bank.find(tenantId, profile.name, id)
  if (hasAll(caller)) return
  if (found.endUserId !== undefined && found.endUserId !== endUserId) throw bank.unknown()
  if (found.endUserId !== endUserId || (visitor && endUserId === undefined)) throw notTheirs()
}

/** The runner has checked the input already. The conductor checks it again, because it does not trust the runner's word. */
function checked(ajv: Ajv, { inputSchema }: typeof memorySearch, execute: ConductorTool['execute']): ConductorTool {
  let valid: ValidateFunction | undefined
  return {
    async execute(input, caller) {
      valid ??= ajv.compile(inputSchema)
      const given = structuredClone(input)
      if (!valid(given)) return failed('The input of the tool is invalid.')
      try {
        return await execute(given, caller)
      } catch (error) {
        if (isAppError(error) && error.status < 500) return failed(error.sentence ?? error.code)
        throw error
      }
    },
  }
}

/** The line that a model reads for one hit. */
export function lineOf({ id, processedContent, eventAt, createdAt, supersededBy }: Hit): string {
  const day = (eventAt ?? createdAt).slice(0, 10)
  const past = supersededBy === undefined ? '' : ', not so any more'
  return `- [${id}, ${day}${past}] ${processedContent.replaceAll('\n', ' ')}`
}
