import { type Static, Type } from '@sinclair/typebox'

/** The server's name becomes part of its tools' names, and model servers accept only these characters. */
export const namePattern = '^[A-Za-z0-9_-]{1,64}$'
const nameForm = new RegExp(namePattern)
export const isEntryName = (text: string): boolean => nameForm.test(text)

/** Answers show this text instead of a header's value that is no reference. A client that sends it back keeps the stored value. */
export const maskedValue = '********'

const Time = Type.String({ format: 'date-time' })
const text = (most: number, description: string) => Type.String({ minLength: 1, maxLength: most, description })

const scopes = Type.Optional(
  Type.Array(Type.String({ pattern: '^[\\x21\\x23-\\x5b\\x5d-\\x7e]{1,200}$' }), { maxItems: 50 }),
)
const secretRef = { pattern: '^secret://[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$' }

const ClientCredentials = Type.Object(
  {
    grant: Type.Literal('client_credentials'),
    tokenUrl: Type.Optional(
      text(
        2_000,
        'The token endpoint; by default that of the metadata of the server and its authorization server (RFC 9728, RFC 8414).',
      ),
    ),
    clientId: text(500, 'The client id at the authorization server.'),
    clientSecret: Type.String({ ...secretRef, description: '`secret://<name>`: a secret of the tenant.' }),
    scopes,
  },
  {
    additionalProperties: false,
    description: 'How to get access tokens for the server; they are sent as `Authorization`.',
  },
)

const AuthorizationCode = Type.Object(
  {
    grant: Type.Literal('authorization_code'),
    connection: Type.Optional(
      Type.Union([Type.Literal('tenant'), Type.Literal('user')], {
        description:
          "Whose account it is: the tenant's (default), for every run that names the entry; or one of each end user, used only through `apps`.",
      }),
    ),
    issuer: Type.Optional(
      text(2_000, 'The authorization server; by default the one that the server names (RFC 9728).'),
    ),
    clientId: Type.Optional(
      text(
        500,
        'The client id at the authorization server; by default the client is registered dynamically (RFC 7591).',
      ),
    ),
    clientSecret: Type.Optional(
      Type.String({ ...secretRef, description: '`secret://<name>`, for a `clientId` that has a secret.' }),
    ),
    scopes,
  },
  {
    additionalProperties: false,
    description:
      'The owner of an account connects it in a browser: `POST /api/apps/{name}/connect`. With PKCE; tokens are renewed automatically.',
  },
)
export type ClientCredentials = Static<typeof ClientCredentials>
export type AuthorizationCode = Static<typeof AuthorizationCode>

export const OAuth = Type.Union([ClientCredentials, AuthorizationCode])
export type OAuth = Static<typeof OAuth>

/** The fields of an entry that the role file and the API share. */
export const entryFields = {
  transport: Type.Optional(
    Type.Union([Type.Literal('streamable-http'), Type.Literal('sse')], {
      description: '`streamable-http` by default. `sse` is the older one, which not every runtime speaks.',
    }),
  ),
  headers: Type.Optional(
    Type.Record(Type.String({ maxLength: 200 }), Type.String({ maxLength: 8_000 }), {
      maxProperties: 50,
      additionalProperties: false,
      description:
        'Sent with every request; a credential as a reference, such as `Bearer secret://github`. Answers show references unchanged, and other values as `********`, which in a `PUT` stands for the stored value.',
    }),
  ),
  oauth: Type.Optional(OAuth),
  allowedTools: Type.Optional(
    Type.Array(Type.String({ minLength: 1, maxLength: 200 }), {
      maxItems: 500,
      uniqueItems: true,
      description: 'The only tools of the server that runs may see and call; by default all.',
    }),
  ),
  toolPolicy: Type.Optional(
    Type.Union([Type.Literal('trust'), Type.Literal('review')], {
      description:
        '`trust` (default): runs have the tools as the server defines them. `review`: runs have only definitions that an admin has accepted; new and changed ones are withheld.',
    }),
  ),
  description: Type.Optional(Type.String({ maxLength: 2_000 })),
}

const shared = {
  url: text(
    2_000,
    'Where the server is: https on the public internet, or a host that `AGENT_ORC_MCP_ALLOW_HOSTS` allows this tenant.',
  ),
  ...entryFields,
  active: Type.Optional(Type.Boolean({ description: 'True by default. Profiles cannot name an inactive entry.' })),
  managedBy: Type.Optional(Type.Unknown({ description: 'Ignored; set by the server.' })),
}
const name = Type.String({
  pattern: namePattern,
  description: 'Unique in its tenant; `mcpServers` of profiles name it.',
})

export const CreateEntry = Type.Object({ name, ...shared }, { additionalProperties: false })
export type CreateEntry = Static<typeof CreateEntry>
/** The path says which entry; a name in the body must agree. */
export const ReplaceEntry = Type.Object({ name: Type.Optional(name), ...shared }, { additionalProperties: false })
export type ReplaceEntry = Static<typeof ReplaceEntry>

export const NameParams = Type.Object({ name: Type.String({ description: 'Name of the entry.' }) })

const ServerInfo = Type.Object({
  name: Type.String(),
  version: Type.String(),
  protocolVersion: Type.Optional(Type.String({ description: 'The negotiated MCP protocol version.' })),
})
export type ServerInfo = Static<typeof ServerInfo>

const Failure = Type.Object({ code: Type.String(), message: Type.String() })
export type Failure = Static<typeof Failure>

export const EntryView = Type.Object({
  name: Type.String(),
  url: Type.String(),
  transport: Type.String(),
  headers: Type.Optional(Type.Record(Type.String(), Type.String())),
  oauth: Type.Optional(OAuth),
  allowedTools: Type.Optional(Type.Array(Type.String())),
  active: Type.Boolean(),
  toolPolicy: Type.String(),
  description: Type.Optional(Type.String()),
  managedBy: Type.Union([Type.Literal('user'), Type.Literal('config')], {
    description: '`config`: from the role file; a tenant can neither change nor delete it.',
  }),
  createdAt: Type.Optional(Time),
  updatedAt: Type.Optional(Time),
  server: Type.Optional(ServerInfo),
  tools: Type.Optional(
    Type.Object({ count: Type.Integer(), listedAt: Time }, { description: 'What the server last reported.' }),
  ),
  health: Type.Optional(
    Type.Object({
      lastSuccessAt: Type.Optional(Time),
      latencyMs: Type.Optional(Type.Integer({ description: 'How long that connection and its list of tools took.' })),
      lastFailureAt: Type.Optional(Time),
      lastFailure: Type.Optional(Failure),
    }),
  ),
})
export type EntryView = Static<typeof EntryView>

const states = ['accepted', 'new', 'changed', 'not_allowed'] as const
export type ToolState = (typeof states)[number]

export const ToolView = Type.Object({
  name: Type.String(),
  title: Type.Optional(Type.String()),
  description: Type.Optional(Type.String()),
  inputSchema: Type.Unknown(),
  digest: Type.String({ description: 'SHA-256 of the definition, in hex.' }),
  state: Type.Union(
    states.map((state) => Type.Literal(state)),
    {
      description:
        '`accepted`: runs have it. `new`, `changed`: withheld until an admin accepts its digest (`toolPolicy: review`). `not_allowed`: not in `allowedTools`.',
    },
  ),
})
export type ToolView = Static<typeof ToolView>

export const TestAnswer = Type.Object({
  ok: Type.Literal(true),
  latencyMs: Type.Integer(),
  server: ServerInfo,
  tools: Type.Array(ToolView, { description: 'The first two hundred; `GET …/tools` has all.' }),
  total: Type.Integer(),
})
export type TestAnswer = Static<typeof TestAnswer>

export const AcceptBody = Type.Object(
  {
    digests: Type.Array(Type.String({ pattern: '^[0-9a-f]{64}$' }), {
      minItems: 1,
      maxItems: 2_000,
      uniqueItems: true,
      description: 'Digests of definitions, from `GET …/tools`.',
    }),
  },
  { additionalProperties: false },
)

const Digest = Type.Object({ name: Type.String(), digest: Type.String() })
export const AcceptAnswer = Type.Object({
  accepted: Type.Array(Digest, { description: 'All accepted digests.' }),
  held: Type.Array(Digest, { description: 'What is still held back.' }),
})
export type AcceptAnswer = Static<typeof AcceptAnswer>
