import type { Discovery, FoundTool } from './discoveries.store.ts'
import { stateOf } from './discovery.ts'
import type { Entry } from './entry.ts'
import { shownHeaders } from './headers.ts'
import type { AcceptAnswer, EntryView, ToolView } from './schema.ts'
import type { KnownEntry } from './store.ts'

/** An entry as the API answers it. */
export function viewOf({ entry, server, ...known }: KnownEntry): EntryView {
  const { headers, allowedTools, oauth, ...rest } = entry
  const { createdAt, updatedAt, toolCount, listedAt } = known
  const health = healthOf(known)
  return {
    ...rest,
    url: entry.managedBy === 'config' ? withoutQuery(entry.url) : entry.url,
    ...(headers ? { headers: shownHeaders(headers) } : {}),
    ...(oauth ? { oauth } : {}),
    ...(allowedTools ? { allowedTools: [...allowedTools] } : {}),
    ...(createdAt === null ? {} : { createdAt }),
    ...(updatedAt === null ? {} : { updatedAt }),
    ...(server ? { server } : {}),
    ...(toolCount === null || listedAt === null ? {} : { tools: { count: toolCount, listedAt } }),
    ...(Object.keys(health).length > 0 ? { health } : {}),
  }
}

function healthOf({ succeededAt, latencyMs, failedAt, failure }: Omit<KnownEntry, 'entry' | 'server'>) {
  return {
    ...(succeededAt === null ? {} : { lastSuccessAt: succeededAt }),
    ...(latencyMs === null ? {} : { latencyMs }),
    ...(failedAt === null ? {} : { lastFailureAt: failedAt }),
    ...(failure ? { lastFailure: failure } : {}),
  }
}

/** The query of a URL in the role file is removed, because it may hold an API key of the operator. */
const withoutQuery = (url: string): string => url.replace(/[?#].*$/s, '')

export const toolViewOf =
  (entry: Entry, accepted: Discovery['accepted']) =>
  ({ name, title, description, inputSchema, digest }: FoundTool): ToolView => ({
    name,
    ...(title === undefined ? {} : { title }),
    ...(description === undefined ? {} : { description }),
    inputSchema,
    digest,
    state: stateOf(entry, accepted, name, digest),
  })

/** The tools that runs may use, and those that an admin has not accepted. */
export function acceptedOf(entry: Entry, { tools, accepted }: Discovery): AcceptAnswer {
  const states = (tools ?? []).map(({ name, digest }) => ({
    state: stateOf(entry, accepted, name, digest),
    tool: { name, digest },
  }))
  return {
    accepted: states.filter(({ state }) => state === 'accepted').map(({ tool }) => tool),
    held: states.filter(({ state }) => state === 'new' || state === 'changed').map(({ tool }) => tool),
  }
}
