import { join } from 'node:path'
import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, Settings } from '#kernel'
import { LocalSidecars, type SidecarLink } from '#contracts/sidecar'
import { vfsFolder, type PollAnswer, pollMs, settleFilesTool, type WorkerCommand } from '#contracts/wire/worker'
import { createDisk, type Disk } from './disk.ts'
import { WorkerIdentity } from './identity/identity.ts'
import { createTools, type Tools } from './tools/tools.ts'
import { workerErrors } from './errors.ts'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { ToolResult } from '#contracts/tools'
import { retry } from '#kit'
import { type Lifetime, persist, waits } from './persist.ts'
import { createConversation, type Conversation } from './conversation.ts'
import { createRunnerClient, isRefusal, type RunnerClient } from './runner-client.ts'
import { createRuns, type Runs } from './runs.ts'
import { FilesCopy, type FilesCopyOptions } from './vfs/copy.ts'

/** The sidecar of one session, which nobody can call: it polls its runner for work. Specification 4.23, rule 3. */
export default definePlugin({
  name: 'worker',
  config: Settings({
    stateDir: Type.Optional(
      Type.String({ description: 'A folder for a copy of the conversation; without it the runner has the only one.' }),
    ),
    drain: Duration('5s', 'A stopping worker lets its run end for this long.'),
    workspace: Type.String({ minLength: 1, description: "The agent's folder; created if it does not exist." }),
    path: Type.String({
      default: '/usr/local/bin:/usr/bin:/bin',
      description: 'PATH of the processes that tools start.',
    }),
    lang: Type.String({ default: 'C.UTF-8', description: 'LANG of the processes that tools start.' }),
    tmpDir: Type.String({ default: '/tmp', description: 'TMPDIR of the processes that tools start.' }),
  }),
  errors: workerErrors,
  requires: { identity: WorkerIdentity, links: LocalSidecars },
  async setup(ctx) {
    const link = ctx.deps.links.get('local')
    if (!link) throw new Error('this role executes no runs: add run-host')
    const { stateDir, drain } = ctx.config
    const tools = await createTools(ctx.config, ctx.log)
    const worker = createWorker({
      identity: ctx.deps.identity,
      link,
      tools,
      places: {
        root: join(tools.workspace, vfsFolder),
        memory: stateDir === undefined ? undefined : () => join(stateDir, `${ctx.deps.identity.sessionId}.vfs`),
      },
      disk: stateDir === undefined ? undefined : createDisk(stateDir),
      log: ctx.log,
      drainMs: drain,
      onShutdown: ctx.end,
      onRefused: ctx.fail,
    })
    ctx.onStart(async () => worker.start())
    ctx.onStop(() => worker.stop())
    return {}
  },
})

interface WorkerOptions {
  readonly identity: WorkerIdentity
  /** Executes the runs of this worker. */
  readonly link: SidecarLink
  readonly tools: Tools
  readonly disk: Disk | undefined
  /** Where the files of the VirtualFS are, and where their synchronized versions are recorded. */
  readonly places: Pick<FilesCopyOptions, 'root' | 'memory'>
  readonly log: FastifyBaseLogger
  /** How long a stopping worker waits for its run to end. */
  readonly drainMs: number
  /** Called when the runner tells the worker to end. */
  onShutdown(): void
  /** Called when the runner refuses this worker, which must end then. */
  onRefused(error: Error): void
}

interface Worker {
  start(): void
  stop(): Promise<void>
}

/** How long interrupted runs and the remaining uploads may take when the worker stops. */
const settleMs = 5_000
/** The least time between two polls. It protects a runner that, against the protocol, answers at once without commands. */
const leastPollMs = 100
/** How long the delivery of a tool's result is retried: longer than a runner takes to restart, shorter than the runner waits for a result. */
const resultMs = 60_000

/** Polls the runner of one session for commands and executes them. */
function createWorker(options: WorkerOptions): Worker {
  const { identity, link, disk, places, log } = options
  const runner = createRunnerClient(identity)
  const [polling, delivering] = [new AbortController(), new AbortController()]
  const life = { stopping: polling.signal, over: delivering.signal }
  const files = new FilesCopy({ ...places, remote: runner.files, log })
  const runs = createRuns({ link, runner, files, log, life })
  const calls = createToolCalls({ tools: options.tools, runs, runner, files, log, life })
  const poll = createPoll(runner, log, polling.signal)
  const converse = (): Conversation =>
    createConversation({ sessionId: identity.sessionId, link, runner, disk, log, life })
  let conversation = converse()
  let after = 0

  const bind = async ({ sessionId, token }: Extract<WorkerCommand, { kind: 'bind' }>): Promise<void> => {
    if (sessionId === identity.sessionId) return identity.renew(token)
    identity.bind(sessionId, token)
    // Each session numbers its commands from 1.
    after = 0
    files.begin()
    conversation = converse()
    await conversation.restore()
  }

  const obey = async (command: WorkerCommand): Promise<void> => {
    switch (command.kind) {
      case 'run':
        return runs.start(command.envelope, conversation)
      case 'cancel':
        return runs.cancel(command.runId)
      case 'export_state':
        return void conversation.save({ asked: true })
      case 'tool':
        return calls.start(command)
      case 'tool_cancel':
        return calls.cancel(command.callId)
      case 'bind':
        return bind(command)
      case 'shutdown':
        polling.abort()
        return options.onShutdown()
    }
  }

  const loop = async (): Promise<void> => {
    try {
      await conversation.restore()
      while (!polling.signal.aborted) {
        const answer = await poll(after)
        if (answer?.token !== undefined) identity.renew(answer.token)
        for (const command of answer?.commands ?? []) {
          // The runner repeats a command until a poll has acknowledged it, so a command with an old id was executed already.
          if (command.id <= after || polling.signal.aborted) continue
          after = command.id
          await obey(command)
          // Commands behind a `bind` were meant for the former session.
          if (command.kind === 'bind') break
        }
      }
    } catch (error) {
      if (!polling.signal.aborted) options.onRefused(error as Error)
    }
  }

  let looping: Promise<void> = Promise.resolve()
  return {
    start() {
      looping = loop()
    },
    async stop() {
      polling.abort()
      calls.stop()
      const late = sleep(options.drainMs + settleMs, undefined, { ref: false })
      await Promise.race([runs.drain(options.drainMs).then(() => conversation.settled()), late])
      delivering.abort()
      await runner.close()
      await looping
    },
  }
}

/**
 * Polls for commands after the id `after`, with retries. Undefined when there is nothing to do; the caller may poll again. Rejects when the runner
 * refuses this worker.
 */
function createPoll(runner: RunnerClient, log: FastifyBaseLogger, signal: AbortSignal) {
  let away = false
  const mayPass = (err: unknown): boolean => {
    if (isRefusal(err)) return false
    if (!away) log.warn({ err }, 'the runner cannot be reached')
    return (away = true)
  }
  return async (after: number): Promise<PollAnswer | undefined> => {
    let asked = 0
    const poll = (): Promise<PollAnswer | undefined> => {
      asked = performance.now()
      return runner.poll({ after, wait: pollMs }, signal)
    }
    try {
      const answer = await retry(poll, { ...waits, signal, mayPass })
      if (away) log.info('the runner is back')
      away = false
      const left = leastPollMs - (performance.now() - asked)
      if (!answer?.commands.length && left > 0) await sleep(left, undefined, { signal }).catch(() => {})
      return answer
    } catch (error) {
      if (signal.aborted) return undefined
      throw error
    }
  }
}

interface ToolCallsOptions {
  readonly tools: Tools
  readonly runs: Pick<Runs, 'egress'>
  readonly runner: RunnerClient
  readonly files: FilesCopy
  readonly log: FastifyBaseLogger
  readonly life: Lifetime
}

type Command = Extract<WorkerCommand, { kind: 'tool' }>

/** Calls of the tools on this machine. Each call is answered independently. */
function createToolCalls({ tools, runs, runner, files, log, life }: ToolCallsOptions) {
  const active = new Map<string, AbortController>()
  /** Settles the files before the call, so that the tool sees changes of others, and again after it if the tool changed any. */
  const withFiles = async (
    { name }: Command,
    signal: AbortSignal,
    execute: () => Promise<ToolResult>,
  ): Promise<ToolResult> => {
    const before = await files.settle(signal)
    if (name === settleFilesTool) return { ok: true, content: before }
    const { ok, content } = await execute()
    const note = (await files.settleIfTouched(signal)) || before
    return { ok, content: note === '' ? content : `${content}\n${note}` }
  }
  const call = async (command: Command): Promise<void> => {
    const { callId, name, input, timeoutMs, vfs = false } = command
    const stop = new AbortController()
    active.set(callId, stop)
    try {
      const { signal } = stop
      const execute = () => tools.call(name, input, { signal, timeoutMs, egress: runs.egress })
      const result = vfs ? await withFiles(command, signal, execute) : await execute()
      if (stop.signal.aborted) return
      await persist(() => runner.answerTool(callId, result, life.over), life, resultMs)
    } catch (err) {
      if (!life.over.aborted) log.warn({ err, callId }, 'the result of a tool was not delivered')
    } finally {
      active.delete(callId)
    }
  }
  return {
    start: (command: Parameters<typeof call>[0]): void => void call(command),
    cancel: (callId: string): void => active.get(callId)?.abort(),
    stop(): void {
      for (const stop of active.values()) stop.abort()
    },
  }
}
