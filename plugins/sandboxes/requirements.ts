import { type Static, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import type { Profile } from '#contracts/profiles'
import { invalidSandbox, type SandboxResources } from '#contracts/sandbox'

/** What a profile asks of its sandbox. */
export interface SandboxRequirements {
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

/** Throws AppError 400 `invalid_sandbox` that names the setting. */
export function requirementsOf({ sandbox }: Profile): SandboxRequirements {
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
