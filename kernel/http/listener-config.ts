import { type Static, Type } from '@sinclair/typebox'
import { Settings } from '../kit/settings.ts'
import { ListenerTls } from '../kit/tls.ts'
import { webGuardSettings } from '../kit/web-guard.ts'
import type { Origin } from '../problems.ts'

/** The settings of a listener in a role file. */
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
  // TypeBox looks for defaults inside the values of a record only if the record has a default itself.
  { default: {} },
)

export interface ListenerConfig extends Omit<Static<typeof ListenerSettings>, 'port'> {
  /** Undefined when the role declares the listener but leaves it switched off. */
  readonly port: number | undefined
  /** The origin of the port setting, so that the error for a port in use can say where to change it. */
  readonly origin?: Origin
}
