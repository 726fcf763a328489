import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database } from '#contracts/database'
import { defaultLimits, type Limits, TenantLimits } from '#contracts/limits'
import { Fleet } from '#contracts/runner'
import { Skills } from '#contracts/skills'
import { databasePlugin, fake, testKernel } from '#testing'
import skills from '../index.ts'

/** Anybody acts for the tenant that the header `tenant` names. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant'] ?? 'acme'), role: 'owner', keyId: 'tak_test' }),
}

/** The tools that the shipped skills explain. */
export const shippedTools = [
  'calculate',
  'current_time',
  'delegate',
  'http_fetch',
  'list_files',
  'memory_forget',
  'memory_save',
  'memory_search',
  'read_file',
  'search_docs',
  'shell',
  'write_file',
]

interface Options {
  /** The database; undefined keeps the skills in memory. */
  readonly dsn?: string | undefined
  readonly dir?: string
  readonly limits?: Partial<Limits>
  /** The tools of each runner. By default there is one runner with all tools. */
  readonly runners?: readonly (readonly string[] | undefined)[]
}

/** A conductor with nothing but skills. */
export async function startSkills(t: TestContext, { dsn, dir, limits = {}, runners = [shippedTools] }: Options = {}) {
  const found: { skills: Skills; database: Database }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { skills: Skills, database: Database },
    setup: async ({ deps }) => (found.push(deps), {}),
  })
  const news: (() => void)[] = []
  const kernel = await testKernel(t, [
    dsn === undefined ? fake(Database, { absent: true } as Database) : await databasePlugin(dsn),
    fake(ApiGuard, openGuard),
    fake(Fleet, {
      describe: () => runners.map((tools) => ({ tools })),
      onLive: (listener: () => void) => (news.push(listener), () => {}),
    } as unknown as Fleet),
    fake(TenantLimits, {
      of: () => ({ ...defaultLimits, ...limits }),
      uses() {},
      stored: { admit() {}, add() {}, isFull: () => false },
    } as unknown as TenantLimits),
    { name: 'skills', plugin: skills, config: dir === undefined ? {} : { dir } },
    probe,
  ])
  const app = kernel.listeners['conductor']!
  const call = (method: 'GET' | 'POST' | 'DELETE', url: string, body?: object, tenant = 'acme') =>
    app.inject({ method, url, headers: { tenant }, ...(body ? { body } : {}) })
  /** Uploads files by their names, as a browser would. */
  const upload = async (
    files: Readonly<Record<string, string | Uint8Array>>,
    tenant = 'acme',
    executable: string[] = [],
  ) => {
    const form = new FormData()
    for (const [name, data] of Object.entries(files))
      form.append('files', new Blob([Buffer.from(data as string)]), name)
    for (const name of executable) form.append('executable', name)
    const encoded = new Response(form)
    const type = encoded.headers.get('content-type')!
    const payload = Buffer.from(await encoded.arrayBuffer())
    return app.inject({ method: 'POST', url: '/api/skills/import', headers: { tenant, 'content-type': type }, payload })
  }
  /** Announces a change of the runners. */
  const tell = (): void => news.forEach((listener) => listener())
  tell()
  return { ...found[0]!, app, call, upload, tell }
}

export const skillText = (name: string, more = '', body = '# Body\n'): string =>
  `---\nname: ${name}\ndescription: What ${name} is for.\n${more}---\n${body}`
