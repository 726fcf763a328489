import { isIP } from 'node:net'
import { invalidSandbox, type LaunchOrder } from '#contracts/sandbox'
import type { NewSandbox, SandboxDetail } from './api.ts'

/** Labels of ours on every sandbox, by which it is found again. */
export const labels = {
  name: 'agent-orc-name',
  owner: 'agent-orc-owner',
  tenant: 'agent-orc-tenant',
  session: 'agent-orc-session',
} as const

export interface OrderRules {
  readonly template: string | undefined
  readonly timeoutSeconds: number
  /** Whether sandboxes reach more of the network than the runner. */
  readonly internet: boolean
}

const templateForm = /^[A-Za-z0-9][A-Za-z0-9_./:-]{0,127}$/

/** What E2B is asked for. Refuses what no template of E2B can serve. */
export function newSandbox(order: LaunchOrder, { template, timeoutSeconds, internet }: OrderRules): NewSandbox {
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
    // A sandbox that everybody forgot costs nothing, and keeps its files.
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

/** The runner as E2B's firewall knows it: an address by its number, a name by what TLS and HTTP say on their own ports. */
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

export const hasLimits = ({ resources: { memoryMb, cpus, diskMb } }: LaunchOrder): boolean =>
  memoryMb !== undefined || cpus !== undefined || diskMb !== undefined

/** A template fixes what its sandboxes have. More than the profile allows is refused, because it cannot be cut. */
export function checkLimits({ resources }: LaunchOrder, { cpuCount, memoryMB, diskSizeMB }: SandboxDetail): void {
  const over = (what: string, has: number, most: number | undefined): void => {
    if (most === undefined || has <= most) return
    throw invalidSandbox(`The E2B template has ${has} ${what}, and the profile allows ${most}: use a smaller template.`)
  }
  over('MB of memory', memoryMB, resources.memoryMb)
  over('CPUs', cpuCount, resources.cpus)
  over('MB of disk', diskSizeMB, resources.diskMb)
}
