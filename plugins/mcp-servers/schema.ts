import { type Static, Type } from '@sinclair/typebox'

const Server = Type.Object(
  {
    url: Type.String({
      pattern: '^https?://.+$',
      expects: 'an http or https URL',
      description: 'Where the server speaks streamable HTTP, as sidecars reach it.',
    }),
    headers: Type.Optional(
      Type.Record(Type.String(), Type.String(), {
        description:
          'Sent with every request, e.g. `authorization: Bearer ${GITHUB_TOKEN}`. One that comes out empty is left out.',
      }),
    ),
  },
  { additionalProperties: false },
)

export const ServerTable = Type.Record(Type.String(), Server, {
  default: {},
  description: 'Servers by the name that profiles give them: up to 64 letters, digits, hyphens and underscores.',
})
export type ServerTable = Static<typeof ServerTable>
