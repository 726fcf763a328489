import { type ObjectOptions, type TSchema, Type } from '@sinclair/typebox'

// Types of settings that the environment can fill: they take text and give the plugin a parsed value.

const units: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }

const text = (description: string | undefined, options: object) =>
  Type.String({ ...options, ...(description ? { description } : {}) })

/** `25s`, `5m`, `500ms`: milliseconds for the plugin. Without a default only where it is optional. */
export const Duration = (fallback: string | undefined, description?: string) =>
  Type.Transform(
    text(description, {
      pattern: '^\\d+(ms|s|m|h|d)$',
      ...(fallback === undefined ? {} : { default: fallback }),
      expects: 'a duration such as 500ms, 25s or 5m',
    }),
  )
    .Decode((duration): number => parseInt(duration) * units[/[a-z]+/.exec(duration)![0]]!)
    .Encode((ms) => `${ms}ms`)

/** `a, b`: a list for the plugin; empty when absent. */
export const CommaList = (description?: string) =>
  Type.Transform(text(description, { default: '' }))
    .Decode((list): string[] =>
      list
        .split(',')
        .map((part) => part.trim())
        .filter(Boolean),
    )
    .Encode((list) => list.join(','))

/** The tenants that may use something. */
export interface TenantList {
  allows(tenantId: string): boolean
  /** Nobody is named, so it need not be there. */
  readonly empty: boolean
}
export const everyTenant: TenantList = { allows: () => true, empty: false }

const tenantId = '[A-Za-z0-9][A-Za-z0-9_.-]*'

/** `'*'`, or `[acme, globex]`, or both in text with commas: a `TenantList` for the plugin. An empty list is nobody. */
export const Tenants = (description = 'The tenants that may use it.', fallback?: readonly string[]) =>
  Type.Transform(
    Type.Array(
      Type.String({
        pattern: `^\\s*(\\*|${tenantId}(\\s*,\\s*${tenantId})*)\\s*$`,
        expects: "'*' for every tenant, or ids of tenants",
      }),
      {
        description: `${description} '*' for all; an empty list for nobody.`,
        missing: "write '*' for every tenant, a list such as [acme, globex], or [] for nobody",
        ...(fallback ? { default: fallback } : {}),
      },
    ),
  )
    .Decode((list): TenantList => {
      const named = new Set(list.flatMap((text) => text.split(',')).map((id) => id.trim()))
      return named.has('*') ? everyTenant : { allows: (id) => named.has(id), empty: named.size === 0 }
    })
    .Encode(() => [])

/** A secret in base64 of at least 32 bytes: a Buffer for the plugin. */
export const Base64Secret = (description?: string) =>
  Type.Transform(
    text(description, {
      pattern: '^[A-Za-z0-9+/_-]{43,}={0,2}$',
      expects: 'base64 of at least 32 bytes (openssl rand -base64 32)',
    }),
  )
    .Decode((secret): Buffer => Buffer.from(secret, 'base64'))
    .Encode((bytes) => bytes.toString('base64'))

/** A plugin's settings: an object that refuses names it does not know. */
export const Settings = <P extends Record<string, TSchema>>(properties: P, options: ObjectOptions = {}) =>
  Type.Object(properties, { additionalProperties: false, ...options })
