import { invalidField } from '#kernel'
import { type Approvals, fitsPattern } from '#contracts/approvals'
import type { Apps } from '#contracts/apps'
import type { Database } from '#contracts/database'
import type { Egress } from '#contracts/egress'
import { newId } from '#contracts/ids'
import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import type { McpServers } from '#contracts/mcp-servers'
import type { ModelAccess } from '#contracts/model-access'
import { isProfileName, type Profile, type ProfileInput } from '#contracts/profiles'
import type { Skills } from '#contracts/skills'
import { measureJson } from '#kit'
import type { BroadcastSender } from './broadcast.ts'
import { documentOf, type ProfileDocument } from './document.ts'
import {
  missingSecret,
  nameMismatch,
  poolWithoutRuntime,
  profileErrors,
  tooManyValues,
  unknownMcpServer,
  unknownToolkit,
  withoutApprovals,
  withoutEgress,
} from './errors.ts'
import { runtimesOfPool } from './pools.ts'
import type { ReplaceProfile } from './schema.ts'
import type { Expected, ProfileStore, Writer } from './store.ts'
import { checkSkills } from './skills.ts'
import { findVersion } from './versions.store.ts'

/** The catalogues that resolve the names in a profile. A catalogue that this role lacks knows no name. */
interface References {
  readonly skills: Skills | undefined
  readonly mcpServers: McpServers | undefined
  readonly egress: Egress | undefined
  readonly apps: Apps | undefined
  readonly approvals: Approvals | undefined
  /** Undefined: every tenant may use every model. */
  readonly models: ModelAccess | undefined
}

/**
 * How many values and names of fields a profile has, and how deep it nests. Every process keeps profiles parsed, where each value takes memory
 * however short its text is, and sends them inside of other bodies, which may nest as deep as 64.
 */
const mostValues = 5_000
const mostDepth = 48

/** Writes commit first and are broadcast afterwards, because the database is the source of truth. Specification 4.3. */
export function createProfileService(
  store: ProfileStore,
  database: Database,
  broadcast: BroadcastSender,
  references: References,
  limits: TenantLimits | undefined,
) {
  /** Refuses an unknown pool. If the pool is deleted after this check, the database refuses the profile. */
  const checkPool = async (tenantId: string, { pool, runtime }: ProfileDocument): Promise<void> => {
    if (pool === undefined) return
    const runtimes = isProfileName(pool) ? await runtimesOfPool(database, tenantId, pool) : undefined
    if (runtimes === undefined) throw profileErrors.unknownPool({ name: pool })
    if (runtimes && !runtimes.includes(runtime)) throw poolWithoutRuntime(pool, runtime)
  }
  const sizeOf = (document: ProfileDocument): number => Buffer.byteLength(JSON.stringify(document))
  /** Profiles are limited in size, because every runner keeps a copy of every profile and every version is stored for ever. */
  const checkSize = (tenantId: string, document: ProfileDocument): void => {
    const { profileBytes: most } = limits?.of(tenantId) ?? defaultLimits
    const text = Buffer.from(JSON.stringify(document))
    if (text.length > most) throw overLimit('profileBytes', most)
    const { parts, depth } = measureJson(text)
    if (parts > mostValues || depth > mostDepth) throw tooManyValues(mostValues, mostDepth)
    limits?.stored.admit(tenantId)
  }
  /** Counts the bytes of each write, because each write adds a version. */
  const written = (tenantId: string, document: ProfileDocument): Promise<void> => {
    limits?.stored.add(tenantId, sizeOf(document))
    return broadcast.changed(tenantId)
  }
  const check = async (tenantId: string, document: ProfileDocument): Promise<ProfileDocument> => {
    checkSize(tenantId, document)
    references.models?.check(tenantId, document.model)
    await checkReferences(references, tenantId, document)
    await checkPool(tenantId, document)
    return document
  }

  return {
    async create(tenantId: string, input: ProfileInput, writer: Writer): Promise<Profile> {
      const document = await check(tenantId, documentOf(input))
      const { profiles: most } = limits?.of(tenantId) ?? defaultLimits
      const profile = await store.insert(tenantId, input.name, input.id ?? newId('prof'), document, { ...writer, most })
      await written(tenantId, document)
      return profile
    },
    async replace(
      tenantId: string,
      name: string,
      input: ReplaceProfile,
      versions: Expected['versions'],
      writer: Writer,
    ): Promise<Profile> {
      if (input.name !== undefined && input.name !== name) throw nameMismatch()
      const document = await check(tenantId, documentOf(input))
      const profile = await store.replace(tenantId, name, { id: input.id, versions }, document, writer)
      await written(tenantId, document)
      return profile
    },
    /** History is never rewritten: restoring stores the old state as a new version. */
    async restore(
      tenantId: string,
      name: string,
      version: number,
      versions: Expected['versions'],
      { keyId }: Writer,
    ): Promise<Profile> {
      const { document } = await findVersion(database, tenantId, name, version)
      await check(tenantId, document)
      const writer = { keyId, restoredFrom: version }
      const profile = await store.replace(tenantId, name, { versions }, document, writer)
      await written(tenantId, document)
      return profile
    },
    async remove(tenantId: string, name: string, versions: Expected['versions']): Promise<void> {
      await store.remove(tenantId, name, { versions })
      await broadcast.changed(tenantId)
    },
  }
}
export type ProfileService = ReturnType<typeof createProfileService>

/** Refuse unknown names when the profile is written, not when a run needs them. Specification 4.3. */
async function checkReferences(
  { skills, mcpServers, egress, apps, approvals }: References,
  tenantId: string,
  document: ProfileDocument,
): Promise<void> {
  await checkSkills(skills, tenantId, document)
  checkApprovals(approvals, document)
  if (document.egress && !egress) throw withoutEgress()
  await egress?.check(tenantId, document)
  const { apps: toolkits = [] } = document
  const strange = toolkits.length === 0 ? [] : ((await apps?.unknown(tenantId, toolkits)) ?? toolkits)
  if (strange.length > 0) throw unknownToolkit(strange, (await apps?.names(tenantId)) ?? [])
  if (document.mcpServers.length === 0) return
  const servers = (await mcpServers?.unknown(tenantId, document.mcpServers)) ?? document.mcpServers
  if (servers.length > 0) throw unknownMcpServer(servers, (await mcpServers?.names(tenantId)) ?? [])
  const [secret] = (await mcpServers?.unknownSecrets(tenantId, document.mcpServers)) ?? []
  if (secret !== undefined) throw missingSecret(secret)
}

/** Refuses a name that matches no tool of the profile: with a typing error, calls of the intended tool would run without an approval. */
function checkApprovals(approvals: Approvals | undefined, document: ProfileDocument): void {
  const { requireApproval = [], tools, mcpServers, apps = [], runtime, workerMode } = document
  if (requireApproval.length > 0 && !approvals) throw withoutApprovals()
  for (const [i, pattern] of requireApproval.entries()) {
    const [head = ''] = pattern.split('*')
    const mayBeOf = (prefix: string): boolean =>
      head.startsWith(prefix) || (head !== pattern && prefix.startsWith(head))
    const isOfServer = mcpServers.some((server) => mayBeOf(`mcp__${server}__`))
    const isOwn = tools.some((tool) => fitsPattern(tool, pattern)) || apps.some((toolkit) => mayBeOf(`${toolkit}__`))
    if (!isOwn && !isOfServer) {
      throw invalidField(`body/requireApproval/${i}`, `names no tool of this profile: '${pattern}'`)
    }
    // Only the general runtime outside a sandbox asks before it calls a tool of an MCP server.
    if (isOfServer && (runtime !== 'general' || workerMode === 'sandbox')) {
      const message = `may stand for tools of MCP servers, whose calls wait only in the runtime general outside a sandbox: '${pattern}'`
      throw invalidField(`body/requireApproval/${i}`, message)
    }
  }
}
