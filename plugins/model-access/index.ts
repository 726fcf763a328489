import { type StaticDecode, Type } from '@sinclair/typebox'
import { definePlugin, Settings, type TenantList, Tenants } from '#kernel'
import { ModelAccess, modelAccessErrors } from '#contracts/model-access'

const Line = Type.Object({ tenants: Tenants('The tenants that may use it.') }, { additionalProperties: false })
const ModelTable = Type.Record(Type.String({ minLength: 1 }), Line, {
  default: {},
  description:
    'Models that only some tenants may use, by `provider/model`; a `*` at the end stands for any rest, and the longest match wins.',
})

/**
 * The models that only some tenants may use, from the table in the role file. A profile that names another one is refused when it
 * is written, and when a run would begin a session with it; sidecars have a list of their own and refuse what began before.
 */
export default definePlugin({
  name: 'model-access',
  config: Settings({ models: ModelTable }),
  errors: modelAccessErrors,
  provides: { access: ModelAccess },
  setup: async ({ config }) => ({ access: createAccess(config.models) }),
})

function createAccess(table: StaticDecode<typeof ModelTable>): ModelAccess {
  const lines = Object.entries(table)
    .map(([pattern, { tenants }]) => ({ pattern, tenants, ...read(pattern) }))
    // The longest first, and of two equally long ones the exact one.
    .sort((a, b) => b.start.length - a.start.length || Number(a.open) - Number(b.open))
  const usable = (tenantId: string): string =>
    [...openTo(lines, tenantId), 'every model that is not in the list of the operator'].join(', ')
  return {
    restricts: lines.length > 0,
    check(tenantId, model) {
      const line = lines.find(({ open, start }) => (open ? model.startsWith(start) : model === start))
      if (!line || line.tenants.allows(tenantId)) return
      throw modelAccessErrors.unknownModel({
        message: `There is no model '${model}' for this tenant; it may use: ${usable(tenantId)}.`,
      })
    },
  }
}

const read = (pattern: string) =>
  pattern.endsWith('*') ? { open: true, start: pattern.slice(0, -1) } : { open: false, start: pattern }

const openTo = (
  lines: readonly { readonly pattern: string; readonly tenants: TenantList }[],
  tenantId: string,
): string[] => lines.flatMap(({ pattern, tenants }) => (tenants.allows(tenantId) ? [pattern] : [])).toSorted()
