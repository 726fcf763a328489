import { type Static, Type } from '@sinclair/typebox'
import { Settings } from '#kernel'
import { invalidSandbox } from '#contracts/sandbox'

/** A pod that profiles name by `sandbox.template`. */
export const PodTemplate = Settings({
  image: Type.String({ minLength: 1 }),
  pod: Type.Optional(
    Type.Record(Type.String(), Type.Unknown(), {
      description: 'More of the pod: runtimeClassName, nodeSelector, tolerations, imagePullSecrets …',
    }),
  ),
  container: Type.Optional(
    Type.Record(Type.String(), Type.Unknown(), { description: 'More of its container: command, imagePullPolicy …' }),
  ),
})
export type PodTemplate = Static<typeof PodTemplate>

export interface TemplateRules {
  /** For profiles that name none. */
  readonly image: string | undefined
  readonly templates: Readonly<Record<string, PodTemplate>>
  /** Beginnings of the images that profiles may name; `*` is any. */
  readonly images: readonly string[]
}

const imageForm = /^[a-z0-9][A-Za-z0-9._:/@-]{0,254}$/

/** The pod that an order asks for. An image is only what the operator lets profiles choose. */
export function templateOf(name: string | undefined, { image, templates, images }: TemplateRules): PodTemplate {
  if (name === undefined) {
    if (image !== undefined) return { image }
    throw invalidSandbox('Set `sandbox.template` of the profile; this runner has no default image.')
  }
  const named = Object.hasOwn(templates, name) ? templates[name] : undefined
  if (named) return named
  if (imageForm.test(name) && images.some((start) => start === '*' || name.startsWith(start))) return { image: name }
  throw invalidSandbox(`'${name}' is neither a pod template of this runner nor an image that it lets profiles choose.`)
}
