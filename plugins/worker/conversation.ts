import type { FastifyBaseLogger } from 'fastify'
import type { SidecarLink } from '#contracts/sidecar'
import { maxStateBytes } from '#contracts/wire/worker'
import { type Lifetime, persist } from './persist.ts'
import type { Disk, DiskState } from './disk.ts'
import { isRefusal, type RevisedState, type RunnerClient } from './runner-client.ts'
import { workerErrors } from './errors.ts'

/** How long an upload is tried while the runner cannot be reached. After that the copy on disk and the next upload have to do. */
const uploadMs = 60_000

/** Moves the conversation of one session between its runtime, the disk and the runner. All of it is best effort. */
export interface Conversation {
  /** Loads the newer of the copies on disk and at the runner. Rejects only when the runner refuses this worker. */
  restore(): Promise<void>
  /** Must be called before a run: gives the restored copy to the runtime, unless the runtime already has it. */
  prepare(runtime: string): Promise<void>
  /** Writes and uploads the present state. With `asked` the runner waits for the answer, so it is also told when there is no state. */
  save(options?: { readonly asked?: boolean }): Promise<void>
  /** Resolves when nothing is being saved. */
  settled(): Promise<void>
}

interface ConversationOptions {
  readonly sessionId: string
  readonly link: SidecarLink
  readonly runner: RunnerClient
  readonly disk: Disk | undefined
  readonly log: FastifyBaseLogger
  readonly life: Lifetime
}

export function createConversation(options: ConversationOptions): Conversation {
  const { sessionId, link, log, life } = options
  const copies = createCopies(options)
  /** The restored copy, until a runtime takes it. */
  let restored: Copy | undefined
  let runtime: string | undefined
  let rev = 0
  /** True when the conversation could not be restored: the runner's copy must not be replaced by an empty one. */
  let lost = false
  let hydrating: Promise<void> = Promise.resolve()
  let saving: Promise<void> = Promise.resolve()

  const give = async (name: string): Promise<void> => {
    if (!restored) return
    const { bundle } = restored
    restored = undefined
    try {
      await link.hydrate(name, sessionId, bundle)
      runtime = name
    } catch (err) {
      // An older copy is not used instead, because a conversation without its last turns looks complete.
      lost = true
      log.warn({ err, rev }, 'the state cannot be restored')
    }
  }
  const hydrate = (name: string): Promise<void> => (hydrating = hydrating.then(() => give(name)))

  /** The present state of the conversation; undefined when there is none. */
  const present = async (): Promise<Copy | undefined> => {
    await hydrating
    if (restored) return restored
    const bundle = runtime === undefined ? undefined : await link.exportState(runtime, sessionId)
    return bundle && { rev: ++rev, runtime, bundle }
  }
  const save = async (asked: boolean): Promise<void> => {
    const copy = await present()
    if (copy) await copies.store(copy)
    else if (asked && !lost) await copies.remove(++rev)
  }
  /** Runs one save at a time, so that an older state cannot arrive after a newer one. */
  const inTurn = (work: () => Promise<void>): Promise<void> =>
    (saving = saving.then(work).catch((err: unknown) => {
      if (!life.over.aborted) log.warn({ err }, 'the state was not saved')
    }))

  return {
    async restore() {
      const [here, there] = await Promise.all([copies.onDisk(), copies.atRunner()])
      rev = Math.max(there?.rev ?? 0, here?.rev ?? 0)
      lost = there === undefined
      // At the same revision the runner's copy wins, because another worker may have continued with it.
      if (here && here.rev > (there?.rev ?? 0)) {
        restored = here
        void inTurn(() => copies.upload(here))
      } else if (there?.bundle) restored = { rev, bundle: there.bundle, runtime: undefined }
      if (!restored) return
      // The runtime unpacks the state now, so that the first run need not wait for it.
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

interface Copy extends RevisedState {
  /** Undefined for the runner's copy, which does not name the runtime. */
  readonly runtime: string | undefined
}

/** The copies of the conversation outside of its runtime. */
interface Copies {
  /** Undefined when there is no readable copy. */
  onDisk(): Promise<DiskState | undefined>
  /** Undefined: it cannot be read. Rejects when the runner refuses this worker. */
  atRunner(): Promise<Awaited<ReturnType<RunnerClient['state']>> | undefined>
  upload(copy: Copy): Promise<void>
  /** Stores the copy on disk and at the runner. */
  store(copy: Copy): Promise<void>
  remove(rev: number): Promise<void>
}

function createCopies({ sessionId, runner, disk, log, life }: ConversationOptions): Copies {
  const upload = (copy: Copy): Promise<void> => persist(() => runner.putState(copy, life.over), life, uploadMs)
  return {
    async onDisk() {
      try {
        return await disk?.read(sessionId)
      } catch (err) {
        log.warn({ err }, 'the state on disk cannot be read')
        return undefined
      }
    },
    async atRunner() {
      try {
        return await persist(() => runner.state(life.over), life)
      } catch (err) {
        if (isRefusal(err)) throw err
        log.warn({ err }, "the runner's copy of the state cannot be read")
        return undefined
      }
    },
    upload,
    async store(copy) {
      if (copy.bundle.bytes.length > maxStateBytes) throw workerErrors.stateTooLarge()
      if (disk && copy.runtime !== undefined) {
        const onDisk = { ...copy, runtime: copy.runtime }
        await disk
          .write(sessionId, onDisk)
          .catch((err: unknown) => log.warn({ err }, 'the state was not written to disk'))
      }
      await upload(copy)
    },
    async remove(rev) {
      await disk?.remove(sessionId)
      await persist(() => runner.deleteState(rev, life.over), life, uploadMs)
    },
  }
}
