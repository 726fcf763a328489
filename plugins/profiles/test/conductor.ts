import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database } from '#contracts/database'
import { McpServers } from '#contracts/mcp-servers'
import { Profiles } from '#contracts/profiles'
import { Fleet, type FleetMember, type RunnerLink } from '#contracts/runner'
import { type SkillNeeds, Skills } from '#contracts/skills'
import { databasePlugin, fake, freshDatabase, testKernel } from '#testing'
import profiles from '../index.ts'

/** Lets every caller of every tenant in. The guard's own tests show who may call what. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({
    tenantId: String(headers['tenant'] ?? 'acme'),
    role: 'admin',
    keyId: String(headers['key'] ?? 'tak_test'),
  }),
}

export interface ConductorOptions {
  readonly runners?: readonly RunnerLink[]
  readonly fleet?: readonly FleetMember[]
  /** The database of another conductor; a fresh one unless given. */
  readonly dsn?: string
  readonly broadcastEvery?: string
}

/** A catalogue that knows one name: answers with the names that it does not know. */
const withoutThe =
  (known: string) =>
  async (_tenantId: string, names: readonly string[]): Promise<string[]> =>
    names.filter((name) => name !== known)

const digest = 'a'.repeat(64)
/** One that any profile may have. */
const skillsThere: Readonly<Record<string, SkillNeeds>> = {
  'using-pdf': { name: 'using-pdf', digest, allowedTools: [], requiresSandbox: false, totalBytes: 1 },
}

/** A conductor with profiles and whatever runners a test gives it. */
export async function conductor(t: TestContext, options: ConductorOptions = {}) {
  const { runners = [], fleet: members = [], broadcastEvery = '1h' } = options
  const dsn = options.dsn ?? (await freshDatabase(t))
  const found: { profiles: Profiles; database: Database }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { profiles: Profiles, database: Database },
    setup: async ({ deps }) => (found.push(deps), {}),
  })
  const live = new Set<(link: RunnerLink) => void>()
  const fleet = fake(Fleet, {
    all: () => runners,
    describe: () => members,
    onLive: (listener: (link: RunnerLink) => void) => (live.add(listener), () => void live.delete(listener)),
  } as unknown as Fleet)
  const kernel = await testKernel(t, [
    await databasePlugin(dsn),
    fake(ApiGuard, openGuard),
    { name: 'profiles', plugin: profiles, config: { broadcastEvery } },
    probe,
    fleet,
    fake(McpServers, {
      unknown: withoutThe('files'),
      names: async () => ['files'],
      unknownSecrets: async (tenantId) => (tenantId === 'globex' ? ['github'] : []),
      resolve: async () => ({ servers: [], unavailable: [] }),
    }),
    fake(Skills, {
      attached: async (_tenant, { skills }) => ({
        found: skills.flatMap((name) => skillsThere[name] ?? []),
        missing: skills.filter((name) => !(name in skillsThere)),
      }),
      content: async () => undefined,
      onOthers() {},
    }),
  ])
  type Method = 'GET' | 'POST' | 'PUT' | 'DELETE'
  const call = (method: Method, url: string, body?: object, tenant = 'acme', headers: Record<string, string> = {}) =>
    kernel.listeners['conductor']!.inject({
      method,
      url,
      headers: { tenant, ...headers },
      ...(body ? { body } : {}),
    })
  /** Calls the listeners as the fleet does when a runner becomes live with an empty memory. */
  const becomesLive = (link: RunnerLink): void => live.forEach((listener) => listener(link))
  const { database } = found[0]!
  /** Inserts a pool without a broadcast, under an id that a test knows: `pool_<name>`. */
  const addPool = (name: string, { runners, runtimes }: { runners?: string[]; runtimes?: string[] } = {}) =>
    database.batch('acme', [
      {
        text: 'INSERT INTO pools (tenant_id, id, name, runners, runtimes) VALUES ($1, $2, $3, $4::text[], $5::text[])',
        values: ['acme', `pool_${name}`, name, runners ?? null, runtimes ?? null],
      },
    ])
  const removePool = (name: string) =>
    database.batch('acme', [{ text: 'DELETE FROM pools WHERE tenant_id = $1 AND name = $2', values: ['acme', name] }])
  return { call, dsn, kernel, becomesLive, addPool, removePool, ...found[0]! }
}
