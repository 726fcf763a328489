import { mkdir, rm } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { definePlugin, isAppError, maybe } from '#kernel'
import { defaultLimits, limitErrors, TenantLimits } from '#contracts/limits'
import { Buckets, objectErrors, ObjectFolders, ObjectStore } from '#contracts/object-store'
import { type ErasedPart, retentionErrors, TenantData } from '#contracts/retention'
import { Secrets } from '#contracts/secrets'
import { runnerHeaders, signedHeaders, type Signer, Signers } from '#contracts/signing'
import { vfsErrors } from '#contracts/vfs'
import { Audit, Sweeper } from './server/audit.ts'
import { Files } from './server/files.ts'
import { Metrics } from './server/metrics.ts'
import { Mounts } from './server/mounts.ts'
import { Callers } from './server/proof.ts'
import { fileRoutes, sessionRoutes } from './server/routes.ts'
import { createSecrets } from './server/buckets.ts'
import { Sessions } from './server/sessions.ts'
import { arrivingIn, checkMounts, mountRisks, serverSettings } from './server/settings.ts'

const listener = 'vfs'

/** A folder of its own, without what a killed process left in it. */
async function emptied(folder: string): Promise<string> {
  await rm(folder, { recursive: true, force: true })
  await mkdir(folder, { recursive: true, mode: 0o700 })
  return folder
}

/** Runners sign with their own family of keys. With this family's key a runner could read every secret. */
const callersOf = (conductors: Signer, runners: Signer | undefined): Callers =>
  new Callers([
    { signer: conductors, header: signedHeaders.signature, areConductors: true },
    ...(runners ? [{ signer: runners, header: runnerHeaders.signature, areConductors: false }] : []),
  ])

interface Erased {
  readonly sessions: Sessions
  readonly mounts: Mounts
  readonly audit: Audit
  readonly dirOf: (tenantId: string) => string
}

/**
 * Erases a part of a tenant. 409 under a legal hold; one that is set meanwhile waits for the end of the part, because the conductor that has asked for
 * it goes on without an answer after a while. A part whose conductor has gone before its turn deletes nothing: nobody would count that.
 */
const eraserOf =
  ({ sessions, mounts, audit, dirOf }: Erased) =>
  async (tenantId: string, signal: AbortSignal): Promise<ErasedPart> => {
    const erased = await sessions.unlessHeld(tenantId, async () => {
      const part = await sessions.erase(tenantId, signal)
      if (part.more) return part
      mounts.forget(tenantId)
      audit.forget(tenantId)
      await rm(dirOf(tenantId), { recursive: true, force: true })
      return part
    })
    if (!erased) throw retentionErrors.legalHold()
    return erased
  }

/**
 * A VirtualFS server: tenants' files behind mounts, with a separate view for each agent's session. All its data is in one folder, so it needs no
 * database, and only one process may use that folder. Specification 4.18.
 */
export default definePlugin({
  name: 'vfs',
  config: serverSettings,
  guards: () => [listener],
  risks: ({ mounts }) => mountRisks(mounts),
  errors: [vfsErrors, objectErrors, limitErrors, retentionErrors],
  requires: {
    signers: Signers,
    folders: ObjectFolders,
    buckets: maybe(Buckets),
    store: maybe(ObjectStore),
    secrets: maybe(Secrets),
    limits: maybe(TenantLimits),
  },
  provides: { data: TenantData },
  async setup({ config, deps, listeners, log, metrics: registry, routes, onStart, onStop }) {
    if (!listeners.includes(listener)) return { data: {} }
    checkMounts(config.mounts, config.scratch)
    const signer = deps.signers.get('vfs')
    if (!signer && config.withoutKey === 'off') {
      log.debug('nothing is served of the VirtualFS: VFS_INTERNAL_SIGNING_KEY_CURRENT is not set')
      return { data: {} }
    }
    if (!signer)
      throw new Error(
        'the listener vfs is on but nothing can verify its requests; set VFS_INTERNAL_SIGNING_KEY_CURRENT',
      )
    if (!config.dir)
      throw new Error('the VirtualFS server needs a folder for sessions and their files; set AGENT_ORC_VFS_DIR')
    const dir = resolve(config.dir)
    const ofTenant = (tenantId: string, ...names: string[]): string => join(dir, 'tenants', `+${tenantId}`, ...names)
    const space = await deps.folders.open(join(dir, 'files'))
    const sessions = new Sessions({
      dir,
      files: space,
      defaults(tenantId) {
        const all = deps.limits?.of(tenantId) ?? defaultLimits
        const { vfsBytes: bytes, vfsEntries: entries, vfsSessions: sessions, objects, objectBytes } = all
        return { bytes, entries, sessions, objects, objectBytes }
      },
      perSession: { bytes: config.sessionBytes, entries: config.sessionEntries },
      onFailed: (err, what) => log.warn({ err }, what),
    })
    const audit = new Audit({
      dirOf: (tenantId) => ofTenant(tenantId, 'audit'),
      mostBytes: config.auditBytes,
      holds: sessions,
    })
    const secrets = createSecrets(deps.secrets, config.conductorUrl, signer)
    onStop(() => secrets.close())
    const mounts = new Mounts({
      dir,
      shared: config.mounts,
      scratch: config.scratch,
      store: deps.store,
      buckets: deps.buckets,
      uploads: await emptied(join(dir, 'uploads')),
      limitsOf: (tenantId) => sessions.limitsOf(tenantId),
      own: { tenants: config.ownMounts, most: config.mostOwnMounts, hosts: config.ownHosts },
      secret: (tenantId, reference) => secrets.resolve(tenantId, reference),
    })
    onStop(() => mounts.close())
    const { scratch, fileBytes, requestsAtOnce } = config
    const metrics = new Metrics(registry, () => sessions.size)
    const arriving = arrivingIn(config)
    const files = new Files({ mounts, sessions, audit, metrics, space, scratch, fileBytes, arriving, requestsAtOnce })
    const callers = callersOf(signer, deps.signers.get('runner'))
    const erase = eraserOf({ sessions, mounts, audit, dirOf: ofTenant })
    routes(listener, async (app) => {
      callers.protect(app)
      fileRoutes(app, callers, mounts, files)
      sessionRoutes(app, callers, { sessions, audit, erase })
    })
    // A conductor in the same process reads the usage directly. A conductor in another process asks over HTTP, through the proxy plugin.
    deps.limits?.uses('vfsBytes', async (tenantId) => (await sessions.usage(tenantId)).bytes)
    deps.limits?.uses('vfsEntries', async (tenantId) => (await sessions.usage(tenantId)).entries)
    deps.limits?.uses('vfsSessions', async (tenantId) => (await sessions.usage(tenantId)).sessions)
    const sweeper = new Sweeper({ sessions, audit, idleMs: config.idle, auditMs: config.auditFor, log })
    onStart(async () => {
      await mounts.start().catch((err: unknown) => {
        if (!isAppError(err)) throw err
        log.warn({ err }, 'a folder of a mount cannot be used')
      })
      sweeper.start(config.sweepEvery)
    })
    onStop(() => sweeper.stop())
    return { data: { vfs: { erase, hold: (tenantId: string, held: boolean) => sessions.hold(tenantId, held) } } }
  },
})
