import { type ObjectOptions, type Static, type TSchema, Type } from '@sinclair/typebox'
import { roles, type TenantRole } from '#contracts/auth'
import { ResponseFormat } from '#contracts/prompt'

export const nodeTypes = ['agent', 'tool', 'condition', 'map', 'loop', 'wait', 'approval', 'workflow', 'http'] as const
export type NodeType = (typeof nodeTypes)[number]

export const idPattern = '^[A-Za-z0-9_-]{1,64}$'
/** Texts that PostgreSQL can store: they contain no NUL. */
export const storablePattern = '^[^\\u0000]*$'
export const json = (description: string) => Type.Unknown({ description })
const template = (description: string, maxLength = 100_000) =>
  Type.String({ minLength: 1, maxLength, description: `${description} A template.` })
const seconds = (description: string, maximum: number) => Type.Number({ minimum: 0, maximum, description })
/** An object with any names. They are not listed one by one to check it: it may have hundreds of thousands. */
const anyObject = (options?: ObjectOptions) =>
  Type.Unsafe<Record<string, unknown>>(Type.Object({}, { ...options, additionalProperties: true }))
export const schemaOf = (description: string) => anyObject({ description })
export const strict = { additionalProperties: false } as const

/** The most seconds that a node may wait or work: a year. */
const mostSeconds = 365 * 86_400

const common = {
  id: Type.String({ pattern: idPattern, description: 'Unique in its workflow.' }),
  name: Type.Optional(Type.String({ maxLength: 200, description: 'For people.' })),
  dependsOn: Type.Optional(
    Type.Array(Type.String({ pattern: idPattern }), {
      maxItems: 10_000,
      description: 'Nodes that come before it, each once. It is skipped when all of them were skipped.',
    }),
  ),
  retry: Type.Optional(
    Type.Object(
      {
        max: Type.Integer({ minimum: 0, maximum: 100, description: 'Attempts after the first one.' }),
        delaySeconds: Type.Optional(seconds('Before the first of them; 1 by default.', 86_400)),
        factor: Type.Optional(
          Type.Number({
            minimum: 1,
            maximum: 10,
            description: 'Factor by which each further delay grows; 2 by default.',
          }),
        ),
        maxDelaySeconds: Type.Optional(seconds('The longest delay; 300 by default.', 86_400)),
      },
      strict,
    ),
  ),
  timeoutSeconds: Type.Optional(
    Type.Number({
      exclusiveMinimum: 0,
      maximum: mostSeconds,
      description:
        'How long one attempt may take. Of `tool` and `http` 60 by default, and at most an hour. Of `workflow` all the time until the child is over, also that in which it waits, is paused or asks people; an `agent` has its time without that in which its run asks people.',
    }),
  ),
  outputSchema: Type.Optional(
    schemaOf(
      'JSON Schema that the output must match; otherwise the attempt fails with `bad_output`. For agents, calls, maps, loops and workflows.',
    ),
  ),
  continueOnError: Type.Optional(
    Type.Boolean({ description: 'When it fails, the nodes after it continue and see `nodes.<id>.error`.' }),
  ),
  concurrencyKey: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 200,
      pattern: storablePattern,
      description: "Of all nodes of the tenant's runs with this key, at most `concurrencyLimit` run at once.",
    }),
  ),
  concurrencyLimit: Type.Optional(Type.Integer({ minimum: 1, maximum: 10_000, description: '1 by default.' })),
  priority: Type.Optional(
    Type.Integer({
      minimum: -100,
      maximum: 100,
      description: 'Ready nodes of a run with the highest priority begin first.',
    }),
  ),
  onLost: Type.Optional(
    Type.Union([Type.Literal('retry'), Type.Literal('fail')], {
      description:
        'What becomes of a call whose process died before its answer was known: it is made again with the same idempotency key (`retry`, the default), or the node fails.',
    }),
  ),
}

/** The fields of each type, besides those of all nodes. */
const ownFields = {
  agent: {
    profile: Type.String({ minLength: 1, maxLength: 64 }),
    prompt: template('The prompt of the agent.'),
    // As for a run. The output of the node is then the JSON value of the answer.
    responseFormat: Type.Optional(ResponseFormat),
    sessionId: Type.Optional(template('Continue in this session.', 1_000)),
    metadata: Type.Optional(anyObject()),
  },
  tool: {
    tool: Type.String({
      minLength: 1,
      maxLength: 200,
      pattern: storablePattern,
      description: 'A platform tool, or `<server>/<tool>` of the MCP catalog.',
    }),
    arguments: Type.Optional(anyObject({ description: 'Texts in it are templates.' })),
  },
  condition: {
    if: Type.Union([Type.String({ minLength: 1, maxLength: 100_000 }), Type.Boolean()], {
      description: 'An expression of CEL: `nodes.score.output > 3 && input.vip`.',
    }),
    // oxlint-disable-next-line unicorn/no-thenable -- nobody awaits a definition.
    then: Type.Optional(Type.Array(Type.String({ pattern: idPattern }), { maxItems: 10_000 })),
    else: Type.Optional(Type.Array(Type.String({ pattern: idPattern }), { maxItems: 10_000 })),
  },
  map: {
    items: Type.Union([template('Makes an array.'), Type.Array(Type.Unknown())], { maxItems: 10_000 }),
    node: Type.Object({}, { additionalProperties: true, description: 'Executed for each `{{ item }}`.' }),
    concurrency: Type.Optional(Type.Integer({ minimum: 1, maximum: 10_000, description: 'Parts at once.' })),
  },
  loop: {
    node: Type.Object({}, { additionalProperties: true, description: 'Executed repeatedly; sees `previous`.' }),
    until: Type.String({
      minLength: 1,
      maxLength: 100_000,
      description: 'An expression of CEL over `output`, `iteration` and all else: it ends when this holds.',
    }),
    max: Type.Integer({ minimum: 1, maximum: 1_000, description: 'It ends after this many turns in any case.' }),
  },
  wait: {
    seconds: Type.Optional(
      Type.Union([Type.Number({ minimum: 0, maximum: mostSeconds }), template('A number.', 1_000)]),
    ),
    until: Type.Optional(template('ISO 8601 with a zone.', 1_000)),
    signal: Type.Optional(Type.String({ pattern: idPattern, description: 'Its payload is the output.' })),
  },
  approval: {
    message: template('The question to approve.', 20_000),
    expiresIn: Type.Optional(
      Type.Number({ exclusiveMinimum: 0, maximum: mostSeconds, description: 'Seconds; for ever by default.' }),
    ),
    onExpiry: Type.Optional(
      Type.Union([Type.Literal('reject'), Type.Literal('approve')], { description: '`reject` by default.' }),
    ),
    role: Type.Optional(
      Type.Union(
        roles.map((one) => Type.Literal(one)),
        { description: 'Who may decide: keys of this role, or of one above; `member` by default.' },
      ),
    ),
  },
  workflow: {
    workflowDefinitionId: Type.String({ pattern: idPattern }),
    input: Type.Optional(json('Its texts are templates.')),
  },
  http: {
    url: template('A public https address.', 8_192),
    method: Type.Optional(
      Type.Union(
        ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD'].map((one) => Type.Literal(one)),
        { description: '`GET` by default.' },
      ),
    ),
    headers: Type.Optional(
      Type.Record(Type.String({ pattern: "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$" }), Type.String({ maxLength: 8_192 }), {
        maxProperties: 100,
        additionalProperties: false,
        description: 'Values are templates; `secret://<name>` stands for a secret of the tenant.',
      }),
    ),
    body: Type.Optional(json('Sent as JSON, or as it is when it is a text. Its texts are templates.')),
    expect: Type.Optional(
      Type.Array(Type.Integer({ minimum: 100, maximum: 599 }), {
        maxItems: 500,
        description: 'Statuses that do not count as a failure; by default those below 400.',
      }),
    ),
  },
} satisfies Readonly<Record<NodeType, Readonly<Record<string, TSchema>>>>

/** The schema of each type of node. */
export const nodeSchemas = {
  agent: Type.Object({ type: Type.Literal('agent'), ...common, ...ownFields.agent }, strict),
  tool: Type.Object({ type: Type.Literal('tool'), ...common, ...ownFields.tool }, strict),
  condition: Type.Object({ type: Type.Literal('condition'), ...common, ...ownFields.condition }, strict),
  map: Type.Object({ type: Type.Literal('map'), ...common, ...ownFields.map }, strict),
  loop: Type.Object({ type: Type.Literal('loop'), ...common, ...ownFields.loop }, strict),
  wait: Type.Object({ type: Type.Literal('wait'), ...common, ...ownFields.wait }, strict),
  approval: Type.Object({ type: Type.Literal('approval'), ...common, ...ownFields.approval }, strict),
  workflow: Type.Object({ type: Type.Literal('workflow'), ...common, ...ownFields.workflow }, strict),
  http: Type.Object({ type: Type.Literal('http'), ...common, ...ownFields.http }, strict),
} as const
export type NodeOf<K extends NodeType> = Static<(typeof nodeSchemas)[K]>
export type WorkflowNode = { [K in NodeType]: NodeOf<K> }[NodeType]
/** The inner node of a map or loop, without its own place in the graph. */
export type InnerNode = Omit<WorkflowNode, 'id' | 'dependsOn'> & { readonly type: NodeType }

/** The lowest role that may decide how a node ends: of an approval its own `role`, of a map or loop the role of its inner node. */
export const roleOf = (spec: WorkflowNode): TenantRole =>
  spec.type === 'approval'
    ? (spec.role ?? 'member')
    : spec.type === 'map' || spec.type === 'loop'
      ? roleOf(spec.node as unknown as WorkflowNode)
      : 'member'

/** The id of the top-level node that a part belongs to. */
export const topOf = (id: string): string => id.split('.', 1)[0]!

/** The spec of a part, at any depth. `top`: the top-level map or loop, with whose id the id of the part begins. */
export function partOf(top: WorkflowNode, id: string): WorkflowNode {
  let spec = top
  for (let level = id.split('.').length; level > 1; level--) spec = (spec as unknown as { node: WorkflowNode }).node
  return spec
}
