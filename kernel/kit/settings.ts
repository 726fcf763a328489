import { type ObjectOptions, type TSchema, Type } from '@sinclair/typebox'

// Types of settings that the environment can fill: they take text and give the plugin a parsed value.

const units: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }

const text = (description: string | undefined, options: object) =>
  Type.String({ ...options, ...(description ? { description } : {}) })

/** `25s`, `5m`, `500ms`: the plugin gets milliseconds. The setting is optional when it has no default. */
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

/** `a, b`: the plugin gets a list, which is empty when the setting is absent. */
export const CommaList = (description?: string) =>
  Type.Transform(text(description, { default: '' }))
    .Decode((list): string[] =>
      list
        .split(',')
        .map((part) => part.trim())
        .filter(Boolean),
    )
    .Encode((list) => list.join(','))

/** A secret of at least 32 bytes in base64: the plugin gets a Buffer. */
export const Base64Secret = (description?: string) =>
  Type.Transform(
    text(description, {
      pattern: '^[A-Za-z0-9+/_-]{43,}={0,2}$',
      expects: 'base64 of at least 32 bytes (openssl rand -base64 32)',
    }),
  )
    .Decode((secret): Buffer => Buffer.from(secret, 'base64'))
    .Encode((bytes) => bytes.toString('base64'))

/** A plugin's settings: an object that refuses unknown names. */
export const Settings = <P extends Record<string, TSchema>>(properties: P, options: ObjectOptions = {}) =>
  Type.Object(properties, { additionalProperties: false, ...options })
