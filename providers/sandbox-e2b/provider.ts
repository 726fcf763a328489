import { setTimeout as sleep } from 'node:timers/promises'
import { isIP } from 'node:net'
import type { FastifyBaseLogger } from 'fastify'
import {
  invalidSandbox,
  type LaunchOrder,
  sandboxGone,
  type SandboxProvider,
  type SandboxState,
} from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'
import { NoAnswer, retry } from '#kit'
import {
  type E2bApi,
  E2bError,
  isConflict,
  isNotFound,
  type NewSandbox,
  type SandboxDetail,
  type StartedSandbox,
} from './api.ts'
import type { WorkerProcesses } from './worker-process.ts'

/** How long, in milliseconds, to wait while a sandbox changes its state. */
const settling = { firstMs: 500, longestMs: 500, withinMs: 60_000 }

interface E2bProviderOptions {
  readonly api: E2bApi
  readonly workers: WorkerProcesses
  readonly rules: OrderRules
  /** The home folder of the user that templates run as. */
  readonly home: string
  readonly log: FastifyBaseLogger
}

/** Sandboxes of E2B: one virtual machine per worker. */
export class E2bProvider implements SandboxProvider {
  readonly contract = 'sandbox/1'
  readonly #options: E2bProviderOptions
  /** Running sandboxes whose timeout this process extends. */
  readonly #awake = new Map<string, StartedSandbox>()

  readonly #timer: NodeJS.Timeout

  constructor(options: E2bProviderOptions) {
    this.#options = options
    // Two extensions may fail before the timeout. When this process dies, E2B pauses its sandboxes at their timeout.
    const everyMs = (options.rules.timeoutSeconds * 1_000) / 3
    this.#timer = setInterval(() => this.#awake.forEach((_, id) => void this.#extend(id)), everyMs).unref()
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  async launch(order: LaunchOrder, signal: AbortSignal): Promise<{ sandboxId: string }> {
    signal.throwIfAborted()
    const { api, rules, workers, log } = this.#options
    const wanted = newSandbox(order, rules)
    // Called without the signal: an unknown started sandbox could never be ended.
    const sandbox = await createOnce(api, wanted).catch((error: unknown) => {
      throw this.#refusal(error, wanted.templateID)
    })
    const sandboxId = sandbox.sandboxID
    try {
      if (hasLimits(order)) checkLimits(order, await api.detail(sandboxId))
      await workers.start(sandbox, this.#envOf(order), { fresh: true, signal })
      signal.throwIfAborted()
    } catch (error) {
      await this.destroy(sandboxId).catch((err: unknown) => {
        log.warn({ err, sandboxId }, 'a sandbox of an aborted launch could not be ended; E2B pauses it at its timeout')
      })
      throw error
    }
    this.#awake.set(sandboxId, sandbox)
    return { sandboxId }
  }

  async status(sandboxId: string, signal?: AbortSignal): Promise<SandboxState> {
    const { api, workers } = this.#options
    try {
      const { state } = await api.detail(sandboxId, signal)
      if (state === 'paused') return 'paused'
    } catch (error) {
      if (isNotFound(error)) return 'gone'
      throw error
    }
    const sandbox = this.#awake.get(sandboxId)
    // The agent inside does not answer, but the machine runs.
    if (!sandbox || (await workers.isRunning(sandbox, signal).catch(() => true))) return 'running'
    // The sandbox may have been paused or restarted in the meantime.
    if (this.#awake.get(sandboxId) !== sandbox) return this.status(sandboxId, signal)
    // Destroy the sandbox, because E2B would otherwise keep and bill the machine.
    await this.destroy(sandboxId)
    return 'gone'
  }

  async pause(sandboxId: string): Promise<void> {
    this.#awake.delete(sandboxId)
    await this.#whenSettled(sandboxId, async () => {
      try {
        await this.#options.api.pause(sandboxId)
      } catch (error) {
        // For E2B, pausing a paused sandbox is a conflict. It counts as success here.
        if (!isConflict(error) || (await this.status(sandboxId)) !== 'paused') throw error
      }
    })
  }

  async resume(sandboxId: string, order: LaunchOrder): Promise<void> {
    const { api, rules, workers } = this.#options
    this.#awake.delete(sandboxId)
    const sandbox = await this.#whenSettled(sandboxId, () => api.connect(sandboxId, rules.timeoutSeconds))
    // The worker woke with its memory, so its token may be outdated. Start the worker again with a new one.
    await workers.start(sandbox, this.#envOf(order))
    this.#awake.set(sandboxId, sandbox)
  }

  async destroy(sandboxId: string): Promise<void> {
    this.#awake.delete(sandboxId)
    await this.#options.api.kill(sandboxId).catch((error: unknown) => {
      if (!isNotFound(error)) throw error
    })
  }

  list(owner: string): Promise<string[]> {
    return this.#options.api.find({ [labels.owner]: owner })
  }

  async #extend(sandboxId: string): Promise<void> {
    const { api, rules, log } = this.#options
    try {
      await api.setTimeout(sandboxId, rules.timeoutSeconds)
    } catch (err) {
      // The sandbox is gone, or somebody else paused it. A sandbox at the maximum lifetime of its account is extended in vain until then.
      if (isNotFound(err) || isConflict(err)) this.#awake.delete(sandboxId)
      else log.warn({ err, sandboxId }, 'the time of a sandbox could not be extended')
    }
  }

  #envOf({ env, runnerUrl }: LaunchOrder): Record<string, string> {
    const { home } = this.#options
    return {
      [workerVariables.workspace]: `${home}/workspace`,
      [workerVariables.stateDir]: `${home}/.agent-orc`,
      ...env,
      [workerVariables.runnerUrl]: runnerUrl,
    }
  }

  /** Retries an operation that a sandbox refuses while it changes its state. */
  async #whenSettled<T>(sandboxId: string, act: () => Promise<T>): Promise<T> {
    try {
      return await retry(act, { ...settling, mayPass: isConflict })
    } catch (error) {
      if (!isNotFound(error)) throw error
      this.#awake.delete(sandboxId)
      throw sandboxGone(error)
    }
  }

  /** Errors about the profile's settings go to the profile's author; all others go to the operator. */
  #refusal(err: unknown, template: string): unknown {
    if (!(err instanceof E2bError) || !err.itsOwn || (err.status !== 400 && err.status !== 404)) return err
    this.#options.log.warn({ err, template }, 'E2B refuses the sandbox')
    return invalidSandbox(`E2B starts no sandbox of the template '${template}' for this runner's API key.`)
  }
}

/** When to look for a sandbox whose creation got no answer, in milliseconds. It may appear at once, or after a complete start. */
const looksMs = [0, 500, 1_500, 3_000]
/** How long to wait for capacity at E2B between attempts. */
const roomWaits = { firstMs: 500, factor: 4, longestMs: 2_000, most: 2 }

/**
 * Creates a sandbox at most once. E2B has no idempotency keys, so a request that may have been carried out is not repeated; instead the sandbox is
 * looked up by its name.
 */
async function createOnce(api: E2bApi, sandbox: NewSandbox): Promise<StartedSandbox> {
  try {
    return await retry(() => api.create(sandbox), { ...roomWaits, mayPass: isFull })
  } catch (error) {
    if (!mayBeDone(error)) throw error
    const found = await findByName(api, sandbox.metadata![labels.name]!)
    if (found === undefined) throw error
    // `connect` returns the access token again.
    return await api.connect(found, sandbox.timeout!)
  }
}

/** E2B itself reports that it has no capacity, so it created no sandbox. */
const isFull = (error: unknown): boolean => error instanceof E2bError && error.status === 503 && error.itsOwn

/** If E2B itself reports a failure, it created no sandbox. A proxy's failure proves nothing. */
const mayBeDone = (error: unknown): boolean =>
  error instanceof NoAnswer ? error.asked : error instanceof E2bError && error.status >= 500 && !error.itsOwn

async function findByName(api: E2bApi, name: string): Promise<string | undefined> {
  for (const wait of looksMs) {
    await sleep(wait)
    const found = await api.find({ [labels.name]: name }).catch(() => [])
    if (found[0] !== undefined) return found[0]
  }
  return undefined
}

/** The labels on each sandbox by which it is found again. */
const labels = {
  name: 'agent-orc-name',
  owner: 'agent-orc-owner',
  tenant: 'agent-orc-tenant',
  session: 'agent-orc-session',
} as const

interface OrderRules {
  readonly template: string | undefined
  readonly timeoutSeconds: number
  /** Whether sandboxes may reach other hosts than the runner. */
  readonly internet: boolean
}

const templateForm = /^[A-Za-z0-9][A-Za-z0-9_./:-]{0,127}$/

/** The request to E2B. Refuses settings that no template of E2B supports. */
function newSandbox(order: LaunchOrder, { template, timeoutSeconds, internet }: OrderRules): NewSandbox {
  const templateID = order.template ?? template
  if (templateID === undefined) {
    throw invalidSandbox('Set `sandbox.template` of the profile to an E2B template; this runner has no default.')
  }
  if (!templateForm.test(templateID)) throw invalidSandbox(`'${templateID}' cannot be the name of an E2B template.`)
  if (order.resources.pids !== undefined) {
    throw invalidSandbox('E2B limits no processes: leave `resources.pids` out.')
  }
  return {
    templateID,
    timeout: timeoutSeconds,
    // A sandbox that is forgotten is paused: it then costs nothing and keeps its files.
    autoPause: true,
    secure: true,
    metadata: {
      [labels.name]: order.name,
      [labels.owner]: order.owner,
      [labels.tenant]: order.tenantId,
      [labels.session]: order.sessionId,
    },
    network: {
      allowPublicTraffic: false,
      ...(internet ? {} : { allowOut: [hostOf(order.runnerUrl)], denyOut: ['0.0.0.0/0'] }),
    },
  }
}

/** The runner in the form of E2B's firewall: an address, or a host name. A name works only for TLS and HTTP on their default ports. */
function hostOf(runnerUrl: string): string {
  const { hostname, port } = new URL(runnerUrl)
  const host = hostname.replace(/^\[|\]$/g, '')
  if (isIP(host) === 4) return `${host}/32`
  if (isIP(host) === 0 && !['', '80', '443'].includes(port)) {
    throw new Error(
      `AGENT_ORC_WORKER_BASE_URL is ${runnerUrl}: sandboxes of E2B reach a host by name on the ports 80 and 443 only`,
    )
  }
  return host
}

const hasLimits = ({ resources: { memoryMb, cpus, diskMb } }: LaunchOrder): boolean =>
  memoryMb !== undefined || cpus !== undefined || diskMb !== undefined

/** A template fixes the resources of its sandboxes. A template with more than the profile allows is refused, because it cannot be reduced. */
function checkLimits({ resources }: LaunchOrder, { cpuCount, memoryMB, diskSizeMB }: SandboxDetail): void {
  const over = (what: string, has: number, most: number | undefined): void => {
    if (most === undefined || has <= most) return
    throw invalidSandbox(`The E2B template has ${has} ${what}, and the profile allows ${most}: use a smaller template.`)
  }
  over('MB of memory', memoryMB, resources.memoryMb)
  over('CPUs', cpuCount, resources.cpus)
  over('MB of disk', diskSizeMB, resources.diskMb)
}
