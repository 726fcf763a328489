import { Type } from '@sinclair/typebox'
import { invalidSandbox, type LaunchOrder } from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'

/** The setting of a provider that names what `sandbox.template` of a profile may say. */
export const Templates = Type.Record(Type.String(), Type.Array(Type.String(), { minItems: 1 }), {
  default: {},
  description:
    'Commands by the names that profiles use as sandbox.template. Without one the built-in worker is started.',
})

export function commandOf(
  order: LaunchOrder,
  templates: Readonly<Record<string, readonly string[]>>,
): readonly string[] {
  if (order.template === undefined) return order.command
  const command = Object.hasOwn(templates, order.template) ? templates[order.template] : undefined
  if (command) return command
  const names = Object.keys(templates).sort().join(', ')
  throw invalidSandbox(
    `This runner has no template '${order.template}': ${names ? `it has ${names}` : 'it has none; leave it out'}.`,
  )
}

/** The worker's environment: as ordered, with the folders and addresses that it has in its sandbox. */
export const workerEnvironment = (
  order: LaunchOrder,
  runnerUrl: string,
  places: { readonly workspace: string; readonly state: string },
): Record<string, string> => ({
  PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
  HOME: places.workspace,
  [workerVariables.workspace]: places.workspace,
  [workerVariables.stateDir]: places.state,
  ...order.env,
  [workerVariables.runnerUrl]: runnerUrl,
})

/** Node reserves 512 MiB of address space for code, and more for the stacks of its threads, but hardly uses any of it. */
const reservedMb = 640

/**
 * The argument for `prlimit` that bounds what each process can ask for, given what it may use. What it reserves counts, too:
 * with a smaller bound Node does not even start.
 */
export const dataLimit = (memoryMb: number): string => `--data=${(memoryMb + reservedMb) * 1024 * 1024}`
