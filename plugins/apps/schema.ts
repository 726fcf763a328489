import { type Static, Type } from '@sinclair/typebox'
import { connectionStates } from '#contracts/apps'
import { PageQuery } from '#contracts/paging'
import { WebhookTarget } from '#contracts/runs'

const Time = Type.String({ format: 'date-time' })
const endUserId = Type.String({
  minLength: 1,
  maxLength: 256,
  // PostgreSQL cannot store NUL in text.
  pattern: '^[^\\u0000]*$',
  description: 'Your id of the person, as in `metadata.end_user_id` of chats.',
})

export const ToolkitParams = Type.Object({ toolkit: Type.String({ description: 'Name of the toolkit.' }) })
export const ConnectionParams = Type.Object({ ...ToolkitParams.properties, id: Type.String() })

export const ToolkitView = Type.Object({
  name: Type.String(),
  description: Type.Optional(Type.String()),
  provider: Type.String({ description: '`mcp` for an entry of the MCP catalog, or the name of another provider.' }),
  connection: Type.Union([Type.Literal('none'), Type.Literal('tenant'), Type.Literal('user')], {
    description: 'The account that it uses: none, one of the tenant, or one of each end user.',
  }),
})
export type ToolkitView = Static<typeof ToolkitView>

export const AppToolView = Type.Object({
  name: Type.String(),
  description: Type.String(),
  inputSchema: Type.Record(Type.String(), Type.Unknown()),
})

export const ToolsQuery = Type.Composite([
  PageQuery,
  Type.Object({
    endUserId: Type.Optional(
      Type.String({
        ...endUserId,
        description: 'The end user whose account is used if the app must be called for the list.',
      }),
    ),
  }),
])

export const CallBody = Type.Object(
  {
    name: Type.String({ minLength: 1, maxLength: 200, description: 'Name of the tool, as the list of tools has it.' }),
    arguments: Type.Optional(Type.Record(Type.String(), Type.Unknown(), { default: {} })),
    endUserId: Type.Optional(endUserId),
  },
  { additionalProperties: false },
)
export const CallAnswer = Type.Object({
  ok: Type.Boolean({ description: 'False: the tool says that it failed.' }),
  result: Type.Unknown({ description: 'As the app answered.' }),
})

export const ConnectBody = Type.Object(
  {
    endUserId: Type.Optional(endUserId),
    returnUrl: Type.Optional(
      Type.String({
        maxLength: 2_000,
        description:
          'Where the browser is redirected afterwards, with `connection` and `state` (`active` or `failed`); a page of an origin that the server allows. By default a plain page.',
      }),
    ),
    webhook: Type.Optional(WebhookTarget),
  },
  { additionalProperties: false },
)
export const ConnectAnswer = Type.Object({
  url: Type.String({
    description: 'Show it only to the owner of the account: whoever follows it connects their own account.',
  }),
  connectionId: Type.String(),
  expiresAt: Time,
})

export const ConnectionView = Type.Object({
  id: Type.String(),
  toolkit: Type.String(),
  endUserId: Type.Optional(Type.String({ description: 'Absent for the account of the tenant.' })),
  state: Type.Union(connectionStates.map((state) => Type.Literal(state))),
  reason: Type.Optional(Type.String({ description: 'Why it is not active, or why its last renewal failed.' })),
  expiresAt: Type.Optional(
    Type.String({
      format: 'date-time',
      description: 'When the current access expires; it is renewed before, if possible.',
    }),
  ),
  renewable: Type.Boolean({ description: 'Access is renewed without its owner.' }),
  webhook: Type.Optional(WebhookTarget),
  createdAt: Time,
  updatedAt: Time,
})
export type ConnectionView = Static<typeof ConnectionView>

export const ConnectionsQuery = Type.Composite([
  PageQuery,
  Type.Object({
    endUserId: Type.Optional(endUserId),
    state: Type.Optional(Type.Union(connectionStates.map((state) => Type.Literal(state)))),
  }),
])

/** The parameters with which the owner of an account comes back. */
const said = (description: string) => Type.Optional(Type.Unknown({ description }))
export const CallbackQuery = Type.Object(
  {
    state: said('Names the attempt.'),
    code: said('The code to exchange for tokens.'),
    iss: said('The issuer of the answer (RFC 9207).'),
    error: said('Why there is no code.'),
  },
  { additionalProperties: true },
)
