import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import {
  invalidSandbox,
  type LaunchOrder,
  sandboxGone,
  type SandboxProvider,
  type SandboxState,
} from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'
import type { E2bApi } from './api.ts'
import { createOnce } from './create-once.ts'
import { E2bError, isConflict, isNotFound } from './errors.ts'
import type { KeepAlive } from './keep-alive.ts'
import { checkLimits, hasLimits, labels, newSandbox, type OrderRules } from './order.ts'
import type { WorkerProcesses } from './worker-process.ts'

/** How long a sandbox may be on its way from one state to another. */
const settleMs = 60_000
const lookMs = 500

export interface E2bProviderOptions {
  readonly api: E2bApi
  readonly workers: WorkerProcesses
  readonly keepAlive: KeepAlive
  readonly rules: OrderRules
  /** Of the user that templates run as. */
  readonly home: string
  readonly log: FastifyBaseLogger
}

/** Sandboxes of E2B: a virtual machine for each worker. */
export function createE2bProvider({ api, workers, keepAlive, rules, home, log }: E2bProviderOptions): SandboxProvider {
  const envOf = ({ env, runnerUrl }: LaunchOrder) => ({
    [workerVariables.workspace]: `${home}/workspace`,
    [workerVariables.stateDir]: `${home}/.agent-orc`,
    ...env,
    [workerVariables.runnerUrl]: runnerUrl,
  })

  const destroy = async (sandboxId: string): Promise<void> => {
    keepAlive.delete(sandboxId)
    await api.kill(sandboxId).catch((error: unknown) => {
      if (!isNotFound(error)) throw error
    })
  }
  const status = async (sandboxId: string, signal?: AbortSignal): Promise<SandboxState> => {
    try {
      const { state } = await api.detail(sandboxId, signal)
      return state === 'paused' ? 'paused' : 'running'
    } catch (error) {
      if (isNotFound(error)) return 'gone'
      throw error
    }
  }
  /** Does what a sandbox refuses while it changes its state; waits for that. */
  const whenSettled = async <T>(sandboxId: string, act: () => Promise<T>): Promise<T> => {
    const end = performance.now() + settleMs
    for (;;) {
      try {
        return await act()
      } catch (error) {
        if (isNotFound(error)) {
          keepAlive.delete(sandboxId)
          throw sandboxGone(error)
        }
        if (!isConflict(error) || performance.now() + lookMs > end) throw error
        await sleep(lookMs)
      }
    }
  }

  return {
    contract: 'sandbox/1',
    status,
    destroy,
    async launch(order, signal) {
      signal.throwIfAborted()
      const wanted = newSandbox(order, rules)
      // Not under the signal: what was begun must be known, or it could not be ended.
      const sandbox = await createOnce(api, wanted).catch((error: unknown) => {
        throw refusal(error, wanted.templateID)
      })
      const sandboxId = sandbox.sandboxID
      try {
        if (hasLimits(order)) checkLimits(order, await api.detail(sandboxId))
        await workers.start(sandbox, envOf(order), { fresh: true, signal })
        signal.throwIfAborted()
      } catch (error) {
        await destroy(sandboxId).catch((err: unknown) => {
          log.warn({ err, sandboxId }, 'a sandbox that was not to be could not be ended; E2B pauses it at its time')
        })
        throw error
      }
      keepAlive.add(sandboxId)
      return { sandboxId }
    },
    async pause(sandboxId) {
      keepAlive.delete(sandboxId)
      await whenSettled(sandboxId, async () => {
        try {
          await api.pause(sandboxId)
        } catch (error) {
          // Paused already, which is a conflict for E2B.
          if (!isConflict(error) || (await status(sandboxId)) !== 'paused') throw error
        }
      })
    },
    async resume(sandboxId, order) {
      const sandbox = await whenSettled(sandboxId, () => api.connect(sandboxId, rules.timeoutSeconds))
      // The worker woke with its memory, and with the token it was started with, which may be too old by now.
      await workers.start(sandbox, envOf(order))
      keepAlive.add(sandboxId)
    },
    list: (owner) => api.find({ [labels.owner]: owner }),
  }
}

/** What the profile asked for is its author's to mend; the rest is the operator's. */
function refusal(error: unknown, template: string): unknown {
  if (!(error instanceof E2bError) || !error.itsOwn) return error
  if (error.status === 404) return invalidSandbox(`E2B has no template '${template}' for this runner's API key.`)
  if (error.status === 400) return invalidSandbox(`E2B cannot start a sandbox of the template '${template}'.`)
  return error
}
