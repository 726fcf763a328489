import { Type } from '@sinclair/typebox'
import { definePlugin, maybe, Settings, Tenants } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { ConductorTools } from '#contracts/conductor-tools'
import { Database, databaseErrors, needsDatabase, presentDatabase } from '#contracts/database'
import { ReadinessChecks } from '#contracts/health'
import { Jobs } from '#contracts/jobs'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { Recall } from '#contracts/memory'
import { Profiles } from '#contracts/profiles'
import { EndUserData, retentionErrors } from '#contracts/retention'
import { MemoryBank } from './bank/bank.ts'
import { usedBy } from './bank/reads.ts'
import { Writer } from './bank/write.ts'
import { endUserMemories } from './end-users.ts'
import { Metrics } from './metrics.ts'
import { Embeddings, MemoryModel, type ProviderSettings } from './model.ts'
import { MemoryRecall } from './recall.ts'
import { bankRoutes, memoryRoutes } from './routes.ts'
import { ExtensionSet } from './search/extensions.ts'
import { Search } from './search/search.ts'
import { VectorList } from './search/vectors.ts'
import { sweepTenants } from './sweep.ts'
import { StemCache } from './text/stems.ts'
import { conductorTools } from './tools.ts'
import { memoryWriteRoutes } from './routes.ts'

const provider = (what: string) =>
  Settings(
    {
      baseUrl: Type.Optional(
        Type.String({
          pattern: '^https?://[^\\s]+$',
          description: 'URL of an OpenAI-compatible server, e.g. https://api.openai.com/v1; none by default.',
        }),
      ),
      apiKey: Type.Optional(Type.String()),
      model: Type.Optional(Type.String({ description: 'Its name there.' })),
    },
    { default: {}, description: what },
  )

/**
 * The memory bank. It stores each statement once, corrects it, finds it by words, names and times, and adds memories to first messages. It needs
 * PostgreSQL; a role without a database has no memory bank. Specification 2.11 and 4.19.
 */
export default definePlugin({
  name: 'memory',
  config: Settings({
    model: provider('The model that makes memories of texts. Without one they are made by rules.'),
    embeddings: provider(
      'The embedding provider, by which memories are found by meaning as well; needs pgvector in the database.',
    ),
    tenants: Tenants('The tenants whose texts are sent to the model and the embedding provider.', ['*']),
    schedule: Type.String({
      default: '*/5 * * * *',
      description: 'When expired memories are deleted and new ones are embedded: five fields of cron, in UTC.',
    }),
  }),
  errors: [databaseErrors, limitErrors, retentionErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    profiles: Profiles,
    limits: maybe(TenantLimits),
    jobs: maybe(Jobs),
  },
  provides: { recall: Recall, tools: ConductorTools, endUsers: EndUserData, ready: ReadinessChecks },
  async setup({ config, deps, log, metrics: registry, routes, onStart, onStop, stopping }) {
    const { guard, database, profiles, limits, jobs } = deps
    const stored = presentDatabase(database)
    const metrics = new Metrics(registry)
    const parts = { log, metrics, tenants: config.tenants }
    const model = settingsOf(config.model, 'model')
    const embedding = settingsOf(config.embeddings, 'embeddings')
    const rewriter = model && new MemoryModel(model, parts)
    const embeddings = embedding && new Embeddings(embedding, parts)
    const stems = new StemCache(database)
    const extensions = new ExtensionSet(database, log, embeddings !== undefined)
    const vectors = embeddings && new VectorList(database, embeddings, log)
    const writer = new Writer({ database, stems, model: rewriter, limits, metrics })
    const search = new Search({ database, stems, extensions, vectors, limits })
    const bank = new MemoryBank({ database, profiles, writer, search, metrics })
    const has = () => ({ similarWords: extensions.found.trigrams, meaning: vectors?.isOpen ?? false })
    onStop(async () => void (await Promise.all([rewriter?.close(), embeddings?.close()])))
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      const services = { bank, database, has }
      memoryRoutes(app, guard, services)
      bankRoutes(app, guard, services)
      memoryWriteRoutes(app, guard, bank)
    })
    if (!stored) return { recall: nothing, tools: {}, endUsers: {}, ready: {} }

    limits?.uses('memories', async (tenantId) => (await usedBy(database, tenantId)).memories)
    limits?.uses('memoryBytes', async (tenantId) => (await usedBy(database, tenantId)).memoryBytes)
    jobs?.every('memory', config.schedule, (signal) => sweepTenants({ database, vectors, writer, log }, signal))
    onStart(async () => {
      // The boot does not wait for a database that cannot be reached.
      void extensions
        .open(stopping)
        .then(async ({ trigrams, vectors: present }) => {
          if (present) await vectors?.open()
          metrics.has('similar', trigrams)
          metrics.has('meaning', vectors?.isOpen ?? false)
        })
        .catch((err: unknown) => {
          if (!stopping.aborted) log.warn({ err }, 'searches of memories run without extensions of the database')
        })
    })
    return {
      recall: new MemoryRecall({ database, bank, metrics, log }),
      tools: conductorTools(bank),
      endUsers: { memory: endUserMemories(database) },
      ready: { memory: async () => extensions.lacking },
    }
  },
})

/** The recall of a role without a database: first messages get no memories. */
const nothing: Recall = { choose: async () => '', chosen: async () => new Map() }

/** Undefined if no server is configured. */
function settingsOf(
  { baseUrl, apiKey, model }: { baseUrl?: string; apiKey?: string; model?: string },
  name: string,
): ProviderSettings | undefined {
  if (baseUrl === undefined) return undefined
  if (model === undefined) throw new Error(`the setting ${name}.baseUrl needs ${name}.modelas well`)
  return { baseUrl, model, ...(apiKey === undefined ? {} : { apiKey }) }
}
