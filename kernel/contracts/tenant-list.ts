import { Type } from '@sinclair/typebox'

/** The tenants that may use something. */
export interface TenantList {
  allows(tenantId: string): boolean
  /** True when the list names no tenant. */
  readonly empty: boolean
  /** True when the list names at most one tenant, so that the thing is not shared. */
  readonly isApart?: boolean
}
export const everyTenant: TenantList = { allows: () => true, empty: false }

const tenantId = '[A-Za-z0-9][A-Za-z0-9_.-]*'

/** Reads `'*'`, `[acme, globex]`, or a text of names separated by commas into a `TenantList`. An empty list names no tenant. */
export const Tenants = (description = 'The tenants that may use it.', fallback?: readonly string[]) =>
  Type.Transform(
    Type.Array(
      Type.String({
        pattern: `^\\s*(\\*|${tenantId}(\\s*,\\s*${tenantId})*)\\s*$`,
        expects: "'*' for every tenant, or ids of tenants",
      }),
      {
        description: `${description} '*' for all; an empty list for none.`,
        missing: "write '*' for every tenant, a list such as [acme, globex], or [] for none",
        ...(fallback ? { default: fallback } : {}),
      },
    ),
  )
    .Decode((list): TenantList => {
      const named = new Set(list.flatMap((text) => text.split(',')).map((id) => id.trim()))
      return named.has('*')
        ? everyTenant
        : { allows: (id) => named.has(id), empty: named.size === 0, isApart: named.size < 2 }
    })
    .Encode(() => [])
