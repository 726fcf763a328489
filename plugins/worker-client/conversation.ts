import type { FastifyBaseLogger } from 'fastify'
import type { SidecarLink } from '#contracts/sidecar'
import { maxStateBytes } from '#contracts/wire/worker'
import { type Lifetime, persist } from './backoff.ts'
import type { Disk, DiskState } from './disk.ts'
import { isRefusal, stateTooLarge } from './errors.ts'
import type { RevisedState, Runner } from './runner.ts'

/** How long an upload is tried when the runner is away; the copy on disk and the next one make up for it. */
const uploadMs = 60_000

interface Copy extends RevisedState {
  /** Not known of a runner's copy. */
  readonly runtime: string | undefined
}

/** The conversation of one session between its runtime, the disk and the runner. All of it is best effort. */
export interface Conversation {
  /** Takes the newer of the disk's and the runner's copy. Rejects only when the runner refuses this worker. */
  restore(): Promise<void>
  /** A run is about to begin: what was restored is given to its runtime, unless that has happened. */
  prepare(runtime: string): Promise<void>
  /** Writes and uploads the state of now. `asked`: the runner waits for it, and is also told that there is none. */
  save(options?: { readonly asked?: boolean }): Promise<void>
  /** Resolves when nothing is being saved. */
  settled(): Promise<void>
}

export interface ConversationOptions {
  readonly sessionId: string
  readonly link: SidecarLink
  readonly runner: Runner
  readonly disk: Disk | undefined
  readonly log: FastifyBaseLogger
  readonly life: Lifetime
}

export function createConversation(options: ConversationOptions): Conversation {
  const { sessionId, link, runner, disk, log, life } = options
  /** No runtime has taken it yet. */
  let restored: Copy | undefined
  let runtime: string | undefined
  let rev = 0
  /** There may be a conversation that this worker has not got: its runner's copy must not be replaced by nothing. */
  let lost = false
  let hydrating: Promise<void> = Promise.resolve()
  let saving: Promise<void> = Promise.resolve()

  const fromDisk = async (): Promise<DiskState | undefined> => {
    try {
      return await disk?.read(sessionId)
    } catch (err) {
      log.warn({ err }, 'the state on disk cannot be read')
      return undefined
    }
  }
  const fromRunner = async () => {
    try {
      return await persist(() => runner.state(life.over), life)
    } catch (err) {
      if (isRefusal(err)) throw err
      log.warn({ err }, "the runner's copy of the state cannot be read")
      lost = true
      return { rev: 0, bundle: undefined }
    }
  }

  const give = async (name: string): Promise<void> => {
    if (!restored) return
    const { bundle } = restored
    restored = undefined
    try {
      await link.hydrate(name, sessionId, bundle)
      runtime = name
    } catch (err) {
      // No older copy in its place: a conversation that lacks its last turns looks like a whole one.
      lost = true
      log.warn({ err, rev }, 'the state cannot be restored')
    }
  }
  const hydrate = (name: string): Promise<void> => (hydrating = hydrating.then(() => give(name)))

  /** What is to be uploaded now; undefined when there is no conversation. */
  const present = async (): Promise<Copy | undefined> => {
    await hydrating
    if (restored) return restored
    const bundle = runtime === undefined ? undefined : await link.exportState(runtime, sessionId)
    return bundle && { rev: ++rev, runtime, bundle }
  }
  const upload = (copy: Copy): Promise<void> => persist(() => runner.putState(copy, life.over), life, uploadMs)
  const store = async (copy: Copy): Promise<void> => {
    if (copy.bundle.bytes.length > maxStateBytes) throw stateTooLarge()
    if (disk && copy.runtime !== undefined) {
      const onDisk = { ...copy, runtime: copy.runtime }
      await disk
        .write(sessionId, onDisk)
        .catch((err: unknown) => log.warn({ err }, 'the state was not written to disk'))
    }
    await upload(copy)
  }
  const save = async (asked: boolean): Promise<void> => {
    const copy = await present()
    if (copy) return await store(copy)
    if (!asked || lost) return
    await disk?.remove(sessionId)
    rev++
    await persist(() => runner.deleteState(rev, life.over), life, uploadMs)
  }
  /** One after the other: an older state must not arrive behind a newer one. */
  const inTurn = (work: () => Promise<void>): Promise<void> =>
    (saving = saving.then(work).catch((err: unknown) => {
      if (!life.over.aborted) log.warn({ err }, 'the state was not saved')
    }))

  return {
    async restore() {
      const [here, there] = await Promise.all([fromDisk(), fromRunner()])
      rev = Math.max(there.rev, here?.rev ?? 0)
      // Of two equal ones the runner's: others may have gone on with it.
      if (here && here.rev > there.rev) {
        restored = here
        void inTurn(() => upload(here))
      } else if (there.bundle) restored = { rev, bundle: there.bundle, runtime: undefined }
      if (!restored) return
      // A runtime unpacks it while nobody waits for it yet.
      const name = restored.runtime ?? (await onlyRuntime(link))
      if (name !== undefined) await hydrate(name)
    },
    async prepare(name) {
      await hydrate(name)
      runtime = name
    },
    save: ({ asked = false } = {}) => inTurn(() => save(asked)),
    settled: () => saving,
  }
}

async function onlyRuntime(link: SidecarLink): Promise<string | undefined> {
  const { runtimes } = await link.health()
  return runtimes.length === 1 ? runtimes[0] : undefined
}
