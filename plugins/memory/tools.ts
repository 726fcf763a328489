import { Ajv } from 'ajv'
import { isAppError } from '#kernel'
import type { ConductorCaller, ConductorTool } from '#contracts/conductor-tools'
import type { ToolResult } from '#contracts/tools'
import type { MemoryBank } from './bank/bank.ts'
import { type Hit, timeOf } from './schema.ts'
import { memoryForget, memorySave, memorySearch } from './tool-specs.ts'

/** What an answer of the search may take of a model's context. */
const mostTokens = 4_000

const ok = (content: string): ToolResult => ({ ok: true, content })
const failed = (content: string): ToolResult => ({ ok: false, content })

/** Whose memories an agent sees: by the profile of its session, and by the end user whom its run answers. */
const scopeOf = ({ profile, endUserId }: Pick<ConductorCaller, 'profile' | 'endUserId'>) =>
  profile.memory?.scope === 'profile' ? {} : { ...(endUserId === undefined ? {} : { endUserId }), shared: true }

/** The conductor's part of the tools. An agent reads and forgets what its scope shows; what it saves is the end user's. */
export function conductorTools(bank: MemoryBank): Record<string, ConductorTool> {
  return {
    [memorySearch.name]: checked(memorySearch, async (input, caller) => {
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
    [memorySave.name]: checked(memorySave, async (input, caller) => {
      const { content, ...more } = input as {
        content: string
        category?: string
        eventAt?: string
        supersedes?: string
      }
      const { tenantId, profile, sessionId, runId, endUserId } = caller
      if (more.supersedes !== undefined) await visible(bank, caller, more.supersedes)
      const origin = { sessionId, runId, ...(endUserId === undefined ? {} : { endUserId }) }
      const made = await bank.create(tenantId, profile.name, { processedContent: content, ...more, ...origin })
      if (made.stored)
        return ok(`Remembered as ${made.id}.${made.supersedes ? ` It takes the place of ${made.supersedes}.` : ''}`)
      if (made.reason === 'duplicate') return ok(`That is remembered already, as ${made.id}.`)
      return failed('That was not kept: there is nothing in it to remember.')
    }),
    [memoryForget.name]: checked(memoryForget, async (input, caller) => {
      const id = String(input['id'])
      await visible(bank, caller, id)
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

/** Rejects with 404 for a memory that the caller's scope does not show, as for one that is not there. */
async function visible(bank: MemoryBank, caller: ConductorCaller, id: string): Promise<void> {
  const found = await bank.find(caller.tenantId, caller.profile.name, id)
  const { endUserId, shared = false } = scopeOf(caller) as { endUserId?: string; shared?: boolean }
  if (shared && found.endUserId !== undefined && found.endUserId !== endUserId) throw bank.unknown()
}

/** A runner has checked the input already; it is looked at again because what it says is its own word. */
function checked({ inputSchema }: typeof memorySearch, execute: ConductorTool['execute']): ConductorTool {
  const valid = new Ajv({ strict: false, useDefaults: true, logger: false }).compile(inputSchema)
  return {
    async execute(input, caller) {
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

/** One hit as a model reads it. */
export function lineOf({ id, processedContent, eventAt, createdAt, supersededBy }: Hit): string {
  const day = (eventAt ?? createdAt).slice(0, 10)
  const past = supersededBy === undefined ? '' : ', not so any more'
  return `- [${id}, ${day}${past}] ${processedContent.replaceAll('\n', ' ')}`
}
