import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { type ConductorTool, ConductorTools } from '#contracts/conductor-tools'
import { Database } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { defaultLimits, type Limits, TenantLimits } from '#contracts/limits'
import { Recall } from '#contracts/memory'
import { type Profile, Profiles } from '#contracts/profiles'
import { EndUserData, type EndUserStore } from '#contracts/retention'
import { databasePlugin, fake, freshDatabase, testKernel } from '#testing'
import memory from '../index.ts'

/** Every caller acts for the tenant in the header `tenant`. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant'] ?? 'acme'), role: 'owner', keyId: 'tak_test' }),
}

export interface StageOptions {
  readonly dsn?: string
  readonly limits?: Partial<Limits>
  readonly config?: object
  /** Called before heavy work, which waits for it. */
  readonly turn?: TenantLimits['turn']
  /** The names of the profiles that every tenant has. */
  readonly profiles?: readonly string[]
  /** False: the role has no database. */
  readonly database?: false
}

/** The answer of the route that stores a memory. */
export type Answer = Record<string, unknown> & {
  id: string
  stored: boolean
  processedContent: string
  supersedes?: string
}

/** A conductor that has only the memory plugin, on a real database. */
export async function stage(t: Pick<TestContext, 'after'>, options: StageOptions = {}) {
  const { limits = {}, config = {}, profiles = ['helper'] } = options
  interface Found {
    readonly database: Database
    readonly recall: Recall
    readonly tools: ReadonlyMap<string, ConductorTool>
    readonly data: ReadonlyMap<string, EndUserStore>
  }
  const found: Found[] = []
  const works: ((signal: AbortSignal) => Promise<void>)[] = []
  const uses = new Map<string, (tenantId: string) => unknown>()
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, recall: Recall, tools: ConductorTools, data: EndUserData },
    setup: async ({ deps }) => (found.push(deps), {}),
  })
  const profile = async (_tenant: string, name: string) => (profiles.includes(name) ? ({ name } as Profile) : undefined)
  const kernel = await testKernel(
    t,
    [
      options.database === false
        ? fake(Database, { absent: true, as: () => undefined } as unknown as Database)
        : await databasePlugin(options.dsn ?? (await freshDatabase(t))),
      fake(ApiGuard, openGuard),
      fake(Profiles, {
        find: profile,
        findIn: async (_tx, name) => profile('', name),
        findPlaced: async (tenant, name) => {
          const one = await profile(tenant, name)
          return one && { profile: one, revision: 1 }
        },
      }),
      fake(Jobs, {
        every: (_name, _cron, work) => void works.push(work),
        ask: async () => {},
        wakeUps: () => ({ send: async () => {}, statements: async () => [], takenBack: async () => [] }),
      }),
      fake(TenantLimits, {
        of: () => ({ ...defaultLimits, ...limits }),
        stored: { admit() {}, add() {} },
        turn: options.turn ?? (async () => {}),
        uses: (name: string, count: (tenantId: string) => unknown) => void uses.set(name, count),
      } as unknown as TenantLimits),
      { name: 'memory', plugin: memory, config },
      probe,
    ],
    { listeners: ['conductor'] },
  )
  const app = kernel.listeners['conductor']!
  const call = (method: 'GET' | 'POST' | 'DELETE', url: string, body?: unknown, tenant = 'acme') =>
    app.inject({
      method,
      url: `/api${url}`,
      headers: { tenant, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
    })
  return {
    ...found[0]!,
    kernel,
    call,
    /** Stores a memory with the route, and resolves to the answer. */
    save: async (body: object, tenant = 'acme', name = 'helper') =>
      (await call('POST', `/profiles/${name}/memories`, body, tenant)).json<Answer>(),
    search: async (query: Record<string, string>, tenant = 'acme', name = 'helper') =>
      (await call('GET', `/profiles/${name}/memories/search?${new URLSearchParams(query)}`, undefined, tenant)).json<{
        items: { id: string; processedContent: string; score: number; why: { list: string; matched?: string[] }[] }[]
      }>().items,
    sweep: () => works[0]!(new AbortController().signal),
    used: async (name: string, tenantId = 'acme') => uses.get(name)?.(tenantId),
  }
}
