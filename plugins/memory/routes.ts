import { Type } from '@sinclair/typebox'
import { access, type App, failures, httpErrors, NoContent, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { limitErrors } from '#contracts/limits'
import { pageHeaders } from '#contracts/paging'
import { sendItems, sendList } from '#kit/lists'
import type { MemoryBank } from './bank/bank.ts'
import { type Group, groupsOf, historyOf, listBank, listMemories, statsOf } from './bank/reads.ts'
import {
  Bank,
  BankQuery,
  CreateMemory,
  Hits,
  ListQuery,
  Memory,
  MemoryParams,
  NameParams,
  NotStored,
  SearchQuery,
  Stats,
  Stored,
  timeOf,
} from './schema.ts'

export const tags = ['memory']

interface MemoryServices {
  readonly bank: MemoryBank
  readonly database: Database
  /** Which optional lists searches use: similar spelling (pg_trgm) and vectors. */
  readonly has: () => Stats['search']
}

/** Routes that read one profile's memories, for every member. Specification 4.19. */
export function memoryRoutes(app: App, guard: Guard, { bank, database }: MemoryServices): void {
  app.get(
    '/api/profiles/:name/memories',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the memories of a profile',
        description: 'Newest first, a page of 100 unless `limit` says otherwise.',
        params: NameParams,
        querystring: ListQuery,
        response: { 200: Type.Array(Memory), ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { query, params } = request
      await bank.known(tenantId, params.name)
      const found = await listMemories(database, tenantId, params.name, query)
      return sendList(request, reply, found, { page: query, item: Memory })
    },
  )
  app.get(
    '/api/profiles/:name/memories/search',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Search the memories of a profile',
        description:
          'Best first. Without `q` everything matches, newest first. Each hit says by which lists it was found.',
        params: NameParams,
        querystring: SearchQuery,
        response: { 200: Hits, ...failures(notFound) },
      },
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      const { q = '', limit = 8, minScore = 0.05, from, to, at, ...more } = request.query
      await bank.known(tenantId, request.params.name)
      const times = {
        ...(from === undefined ? {} : { from: timeOf(from, 'querystring/from') }),
        ...(to === undefined ? {} : { to: timeOf(to, 'querystring/to') }),
        now: at === undefined ? new Date() : timeOf(at, 'querystring/at'),
      }
      const asked = { ...more, ...times, q: q.replaceAll('\0', ' ').toWellFormed(), limit, minScore }
      return { items: await bank.search('api', tenantId, request.params.name, asked) }
    },
  )
  app.get(
    '/api/profiles/:name/memories/:id',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get a memory',
        params: MemoryParams,
        response: { 200: Memory, ...failures(notFound) },
      },
    },
    async (request) => bank.find(guard.callerOf(request).tenantId, request.params.name, request.params.id),
  )
  app.get(
    '/api/profiles/:name/memories/:id/history',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get the history of a memory',
        description: 'The memory, what it superseded and what superseded it, newest first; 200 at most.',
        params: MemoryParams,
        response: { 200: Type.Array(Memory), ...failures(notFound) },
      },
    },
    async (request) => historyOf(database, guard.callerOf(request).tenantId, request.params.name, request.params.id),
  )
}

/** Routes that read the memories of all profiles together. */
export function bankRoutes(app: App, guard: Guard, { database, has }: MemoryServices): void {
  app.get(
    '/api/memory',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Show the memory bank',
        description:
          'Current memories of all profiles. With `limit` a page, newest first; without it by profile. `q` searches the newest 10,000.',
        querystring: BankQuery,
        response: { 200: Bank },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { query } = request
      const { limit, offset = 0 } = query
      if (limit === undefined) {
        const { groups, total, profilesWithMemory } = await groupsOf(database, tenantId, query)
        const document = (profiles: readonly Group[]) => ({ total, profilesWithMemory, profiles })
        const { value: items = [] } = await groups.next()
        void reply.header('x-total-count', String(total))
        const item = Bank.properties.profiles.items
        return sendItems(request, reply, { items, rest: groups }, { item, document })
      }
      const { profilesWithMemory, ...found } = await listBank(database, tenantId, query)
      const { total } = found
      void reply.headers(pageHeaders(request.url, query, found))
      const document = (items: readonly Memory[]) => ({ total, profilesWithMemory, limit, offset, items })
      return sendItems(request, reply, found, { item: Memory, document })
    },
  )
  app.get(
    '/api/memory/stats',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Show figures of the memory bank',
        response: { 200: Stats },
      },
    },
    async (request) => ({ ...(await statsOf(database, guard.callerOf(request).tenantId)), search: has() }),
  )
}

/** Routes that write memories, for admins. Agents write memories with tools. */
export function memoryWriteRoutes(app: App, guard: Guard, bank: MemoryBank): void {
  app.post(
    '/api/profiles/:name/memories',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Create a memory',
        description:
          'Junk and duplicates are not stored: see `stored`. A statement that corrects another one supersedes it; the older one stays as history.',
        params: NameParams,
        body: CreateMemory,
        response: {
          201: Type.Union([Stored, NotStored]),
          ...failures(httpErrors.invalidRequest, notFound, limitErrors.limitExceeded),
        },
      },
    },
    async (request, reply) => {
      const made = await bank.create(guard.callerOf(request).tenantId, request.params.name, request.body)
      return reply.code(201).send(made)
    },
  )
  app.delete(
    '/api/profiles/:name/memories/:id',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete a memory',
        description: 'Permanently. Memories that it superseded stay history.',
        params: MemoryParams,
        response: { 204: NoContent, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      await bank.remove(guard.callerOf(request).tenantId, request.params.name, request.params.id)
      return reply.code(204).send()
    },
  )
}
