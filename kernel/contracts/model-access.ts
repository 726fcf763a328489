import { capability } from '../plugin.ts'
import { errorTable } from './errors.ts'

export const modelAccessErrors = errorTable('model-access', {
  unknownModel: {
    status: 400,
    about: 'The tenant may not use this model; the sentence lists the models that it may use.',
  },
})

/** Which tenants may use which models. */
export interface ModelAccess {
  /** False while every tenant may use every model. */
  readonly restricts: boolean
  /** Throws AppError 400 `unknown_model` for a model that a tenant may not use. */
  check(tenantId: string, model: string): void
}
export const ModelAccess = capability<ModelAccess>('conductor.model-access')
