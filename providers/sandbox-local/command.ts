import { Type } from '@sinclair/typebox'
import { invalidSandbox, type LaunchOrder } from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'

/** The provider setting that lists the values of a profile's `sandbox.template`. */
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

/** The worker's environment: that of the order, with the folders and addresses as they are inside its sandbox. */
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

/** MB. Node reserves 512 MiB of address space for code and more for its threads' stacks, but uses hardly any of it. */
const reservedMb = 640

/**
 * The `prlimit` argument that bounds the memory that each process can request, derived from what it may use. Reserved memory counts too: with a
 * smaller bound Node does not even start.
 */
export const dataLimit = (memoryMb: number): string => `--data=${(memoryMb + reservedMb) * 1024 * 1024}`
