import { randomInt } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import type { Profile } from '#contracts/profiles'
import type { LaunchOrder } from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'
import type { WorkerChannel } from '#contracts/workers'
import type { SandboxWish } from './wishes.ts'

const file = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url))

/** Our own worker, for providers that run it on this machine. */
const command = [process.execPath, file('cli/agent-orc.js'), 'start', '--config', file('config/worker.yaml')]

const letters = 'abcdefghijklmnopqrstuvwxyz0123456789'
export const newSandboxName = (): string => `ao-${Array.from({ length: 16 }, () => letters[randomInt(36)]).join('')}`

export interface OrderSettings {
  readonly owner: () => string
  readonly runnerUrl: () => string
  readonly logLevel: string
}

/** Writes what a provider is told to start. */
export interface Orders {
  write(tenantId: string, channel: WorkerChannel, profile: Profile, wish: SandboxWish): LaunchOrder
}

export const createOrders = ({ owner, runnerUrl, logLevel }: OrderSettings): Orders => ({
  write: (tenantId, channel, profile, { template, resources }) => ({
    name: newSandboxName(),
    owner: owner(),
    tenantId,
    sessionId: channel.sessionId,
    ...(template === undefined ? {} : { template }),
    resources,
    runnerUrl: runnerUrl(),
    env: { ...identityOf(channel, channel.token), MODE: profile.runtime, LOG_LEVEL: logLevel },
    command,
  }),
})

/** For a sandbox whose worker starts anew: it may have a session since, and its first token is old. */
export const renewed = async (order: LaunchOrder, channel: WorkerChannel): Promise<LaunchOrder> => ({
  ...order,
  env: { ...order.env, ...identityOf(channel, await channel.freshToken()) },
})

const identityOf = ({ sessionId }: WorkerChannel, token: string): Record<string, string> => ({
  [workerVariables.token]: token,
  [workerVariables.sessionId]: sessionId,
})
