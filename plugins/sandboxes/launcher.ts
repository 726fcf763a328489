import { randomInt } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import { type Static, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import type { Profile } from '#contracts/profiles'
import type { StateBundle } from '#contracts/runtime'
import { invalidSandbox, type LaunchOrder, sandboxGone, type SandboxResources } from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'
import { asStartFailure, isGone, sandboxErrors } from './errors.ts'
import type { Hub } from './hub/hub.ts'
import type { WorkerChannel } from './hub/worker.ts'
import type { Reaper } from './reaper.ts'
import { type Sandbox, stateOf } from './sandbox.ts'
import type { Substrate, Substrates } from './substrates.ts'
import { unlessAborted } from './waiting.ts'

interface LaunchRequest {
  readonly tenantId: string
  /** The session's id, or the slot of a warm worker that has no session yet. */
  readonly sessionId: string
  readonly profile: Profile
  /** The conversation that the worker starts with. */
  readonly state: StateBundle | undefined
  readonly warm: boolean
  readonly signal: AbortSignal
}

/** Starts sandboxes and waits for the workers in them. */
export interface Launcher {
  /** The provider for the sandboxes of a profile. Throws as `launch` does when the profile cannot have one. */
  substrateFor(tenantId: string, profile: Profile): Substrate
  /** Resolves when the worker polls. When it rejects, nothing is left behind, and the error says why in words for people. */
  launch(request: LaunchRequest): Promise<Sandbox>
  /** Resumes a paused sandbox and waits for its worker. AppError `sandbox_gone` when the sandbox no longer exists. */
  resume(sandbox: Sandbox, signal: AbortSignal): Promise<void>
  /** Waits until the worker of an awake sandbox polls. AppError `sandbox_gone` as soon as the sandbox is seen to be gone. */
  connected(sandbox: Sandbox, signal: AbortSignal): Promise<void>
}

interface LauncherOptions {
  readonly hub: Hub
  readonly substrates: Substrates
  readonly reaper: Reaper
  /** The name under which this runner launches sandboxes; it survives restarts. Throws until the runner listens, as `runnerUrl` does. */
  readonly owner: () => string
  /** The address where workers reach this runner. */
  readonly runnerUrl: () => string
  /** The log level of the workers. */
  readonly logLevel: string
  /** How long a start and its worker's first poll may take. */
  readonly connectMs: number
}

/** How often the sandbox is checked while its worker starts. A sandbox that has ended fails the start at once instead of at the limit. */
const lookEveryMs = 500

export function createLauncher(options: LauncherOptions): Launcher {
  const { hub, substrates, reaper, connectMs } = options
  const tooLate = (cause: unknown) =>
    sandboxErrors.sandboxStartFailed({
      cause,
      retryable: true,
      message: `The sandbox was not ready within ${connectMs / 1_000} s.`,
    })
  /** One limit covers the start and the worker's first poll. */
  const withinLimit = async <T>(signal: AbortSignal, work: (bound: AbortSignal) => Promise<T>): Promise<T> => {
    const limit = AbortSignal.timeout(connectMs)
    try {
      return await work(AbortSignal.any([signal, limit]))
    } catch (cause) {
      throw limit.aborted && !signal.aborted ? tooLate(cause) : cause
    }
  }

  const launcher: Launcher = {
    substrateFor: (tenantId, profile) => substrates.choose(tenantId, requirementsOf(profile).provider),
    async launch({ tenantId, sessionId, profile, state, warm, signal }) {
      const substrate = launcher.substrateFor(tenantId, profile)
      // The token is minted first, because no sandbox is started without a token for its worker.
      const channel = await hub.open(tenantId, sessionId)
      // Without a state none is set, so that the worker's first upload counts as the newest copy.
      if (state) channel.setState(state)
      let launching: ReturnType<typeof substrate.provider.launch> | undefined
      try {
        return await withinLimit(signal, async (bound) => {
          bound.throwIfAborted()
          const order = orderFor(options, tenantId, channel, profile)
          launching = substrate.provider.launch(order, bound)
          reaper.expect(substrate, launching)
          const { sandboxId, runnerUrl = order.runnerUrl } = await unlessAborted(launching, bound)
          const sandbox = { substrate, sandboxId, order, runnerUrl, channel, warm, launchedAt: Date.now() }
          await launcher.connected(sandbox, bound)
          return sandbox
        })
      } catch (error) {
        channel.close()
        // The provider may report the sandbox after the caller has given up. That sandbox must be destroyed as well.
        launching?.then(
          ({ sandboxId }) => reaper.destroy({ substrate, sandboxId }),
          () => {},
        )
        throw asStartFailure(isGone(error) ? endedAtOnce(error) : error)
      }
    },
    resume: (sandbox, signal) =>
      withinLimit(signal, async (bound) => {
        const { substrate, sandboxId, order, channel } = sandbox
        const again = await renewed(order, channel)
        await unlessAborted(substrate.provider.resume(sandboxId, again), bound)
        await launcher.connected(sandbox, bound)
      }),
    async connected(sandbox, signal) {
      const gone = new AbortController()
      const looking = setInterval(() => {
        void stateOf(sandbox).then((state) => {
          if (state === 'gone') gone.abort()
        })
      }, lookEveryMs)
      try {
        await sandbox.channel.connected(AbortSignal.any([gone.signal, signal]))
      } catch (cause) {
        throw gone.signal.aborted ? sandboxGone(cause) : cause
      } finally {
        clearInterval(looking)
      }
    },
  }
  return launcher
}

const endedAtOnce = (cause: unknown) =>
  sandboxErrors.sandboxStartFailed({
    cause,
    retryable: true,
    message: 'The sandbox ended before its worker was ready.',
  })

const file = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url))

/** The command of the built-in worker, for providers that run it on this machine. */
const command = [process.execPath, file('cli/agent-orc.js'), 'start', '--config', file('config/worker.yaml')]

const letters = 'abcdefghijklmnopqrstuvwxyz0123456789'
const newSandboxName = (): string => `ao-${Array.from({ length: 16 }, () => letters[randomInt(36)]).join('')}`

/** The order for a provider. */
function orderFor(
  { owner, runnerUrl, logLevel }: LauncherOptions,
  tenantId: string,
  channel: WorkerChannel,
  profile: Profile,
): LaunchOrder {
  const { template, resources } = requirementsOf(profile)
  return {
    name: newSandboxName(),
    owner: owner(),
    tenantId,
    sessionId: channel.sessionId,
    ...(template === undefined ? {} : { template }),
    resources,
    runnerUrl: runnerUrl(),
    env: { ...identityOf(channel, channel.token), MODE: profile.runtime, LOG_LEVEL: logLevel },
    command,
  }
}

/** The launch order for a worker that starts anew in its sandbox. The worker may have another session by now, and its first token is old. */
const renewed = async (order: LaunchOrder, channel: WorkerChannel): Promise<LaunchOrder> => ({
  ...order,
  env: { ...order.env, ...identityOf(channel, await channel.freshToken()) },
})

const identityOf = ({ sessionId }: WorkerChannel, token: string): Record<string, string> => ({
  [workerVariables.token]: token,
  [workerVariables.sessionId]: sessionId,
})

/** The sandbox settings of a profile. */
interface SandboxRequirements {
  /** Undefined: the runner's default. */
  readonly provider?: string
  readonly template?: string
  readonly resources: SandboxResources
}

/** The maxima are beyond any machine: they catch a number of bytes in a field of mebibytes. */
const Resources = Type.Object(
  {
    memoryMb: Type.Optional(Type.Integer({ minimum: 16, maximum: 4_194_304 })),
    cpus: Type.Optional(Type.Number({ minimum: 0.01, maximum: 1_024 })),
    pids: Type.Optional(Type.Integer({ minimum: 1, maximum: 4_194_304 })),
    diskMb: Type.Optional(Type.Integer({ minimum: 1, maximum: 67_108_864 })),
  },
  { additionalProperties: false },
)
const Requirements = Type.Object(
  {
    provider: Type.Optional(Type.String({ minLength: 1 })),
    template: Type.Optional(Type.String({ minLength: 1, maxLength: 512 })),
    resources: Type.Optional(Resources),
  },
  { additionalProperties: false },
)

/** Reads the sandbox settings of a profile. Throws AppError 400 `invalid_sandbox` that names the wrong setting. */
function requirementsOf({ sandbox }: Profile): SandboxRequirements {
  const given = sandbox ?? {}
  const [wrong] = Value.Errors(Requirements, given)
  if (wrong) throw invalidSandbox(complaint(wrong.path, wrong.message))
  const { provider, template, resources = {} } = given as Static<typeof Requirements>
  return {
    ...(provider === undefined ? {} : { provider }),
    ...(template === undefined ? {} : { template }),
    resources,
  }
}

function complaint(path: string, message: string): string {
  const setting = `sandbox${path.replaceAll('/', '.')}`
  if (message !== 'Unexpected property')
    return `The setting ${setting} of the profile is wrong: ${message.toLowerCase()}.`
  const known = path.startsWith('/resources/') ? Resources : Requirements
  return `The profile has no setting ${setting}; there are ${Object.keys(known.properties).join(', ')}.`
}
