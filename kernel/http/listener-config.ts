import { type Static, Type } from '@sinclair/typebox'
import { Settings } from '../kit/settings.ts'
import { ListenerTls } from '../kit/tls.ts'
import { webGuardSettings } from '../kit/web-guard.ts'
import type { Origin } from '../problems.ts'

/** A listener as it stands in a role file. */
export const ListenerSettings = Settings(
  {
    host: Type.String({ minLength: 1, default: '127.0.0.1', description: 'Address to listen on.' }),
    port: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: 65_535,
        description: 'TCP port; 0 picks a free one. Empty: the listener is declared but off.',
      }),
    ),
    orFree: Type.Optional(
      Type.Boolean({ description: 'When the port is in use, listen on a free one, and log which.' }),
    ),
    ...webGuardSettings,
    tls: Type.Optional(ListenerTls),
  },
  // Without a default of its own, TypeBox does not look for defaults inside the values of a record.
  { default: {} },
)

export interface ListenerConfig extends Omit<Static<typeof ListenerSettings>, 'port'> {
  /** Undefined when the role declares the listener and leaves it off. */
  readonly port: number | undefined
  /** Where the port came from, so that a port that is taken can say what changes it. */
  readonly origin?: Origin
}
