import { join } from 'node:path'
import { Type } from '@sinclair/typebox'
import { Counter } from 'prom-client'
import { definePlugin, maybe, Settings } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Database } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { Fleet } from '#contracts/runner'
import { skillErrors, Skills } from '#contracts/skills'
import { Catalog } from './catalog.ts'
import { importErrors } from './errors.ts'
import { importRoutes } from './routes.ts'
import { LocalSkillStore } from './local.ts'
import { PlatformSkills } from './platform.ts'
import { PostgresSkillStore } from './postgres.ts'
import { skillRoutes, skillWriteRoutes } from './routes.ts'
import { readSeeds } from './seeds.ts'
import { sweepTenants } from './sweep.ts'

/**
 * Skills of tenants in the open SKILL.md format, including those of the platform. They are stored in PostgreSQL or, without a database, in memory and
 * in a folder. The runner's part is `plugins/skills/runner`. Specification 2.10 and 4.12.
 */
export default definePlugin({
  name: 'skills',
  config: Settings({
    dir: Type.Optional(
      Type.String({
        description: 'Folder with skills for every tenant, beside those that explain the tools of the platform.',
      }),
    ),
  }),
  errors: [skillErrors, importErrors, limitErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    fleet: maybe(Fleet),
    limits: maybe(TenantLimits),
    jobs: maybe(Jobs),
  },
  provides: { skills: Skills },
  async setup({ config: { dir }, deps, log, metrics, routes }) {
    const { guard, database, fleet, limits, jobs } = deps
    const stored = database.absent === true ? undefined : new PostgresSkillStore(database)
    const store = stored ?? new LocalSkillStore(dir && join(dir, '.tombstones.json'))
    const platform = new PlatformSkills({ read: () => readSeeds(dir, log), live: !stored, fleet })
    const catalog = new Catalog(store, platform, limits)
    const imports = new Counter({
      name: 'skill_imports_total',
      help: 'Uploads of skill folders, by outcome.',
      labelNames: ['outcome'],
      registers: [metrics],
    })
    limits?.uses('skills', (tenantId) => store.count(tenantId))
    if (stored) jobs?.every('skills', '*/10 * * * *', (signal) => sweepTenants(database, stored, signal))
    routes('conductor', async (app) => {
      guard.protect(app)
      skillRoutes(app, guard, catalog)
      skillWriteRoutes(app, guard, catalog)
      await importRoutes(app, guard, catalog, imports)
    })
    return { skills: catalog }
  },
})
