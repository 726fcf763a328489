import { type Static, Type } from '@sinclair/typebox'
import { profileName } from '#contracts/profiles'
import { WebhookTarget } from '#contracts/runs'
import { idPattern, json, nodeTypes, schemaOf, storablePattern, strict, type WorkflowNode } from './node.schema.ts'

/** Statuses of runs and nodes. Snapshots and tables have the index of a status as its number. Specification 2.9. */
export const runStatuses = ['pending', 'running', 'paused', 'completed', 'failed', 'cancelled'] as const
export type RunStatus = (typeof runStatuses)[number]
export const nodeStatuses = ['pending', 'ready', 'running', 'ok', 'error', 'skipped', 'cancelled'] as const
export type NodeStatus = (typeof nodeStatuses)[number]
/** The final statuses of a node. */
export const terminalStatuses = ['ok', 'error', 'skipped', 'cancelled'] as const
export type TerminalStatus = (typeof terminalStatuses)[number]

/** A node as a request sends it. The fields of its type are checked later with all others, so that one answer reports all problems. */
export const NodeBody = Type.Object(
  {
    id: Type.Optional(Type.Unknown({ description: 'Up to 64 letters, digits, `_` and `-`, unique in the workflow.' })),
    type: Type.Optional(Type.Unknown({ description: `One of ${nodeTypes.map((type) => `\`${type}\``).join(', ')}.` })),
    dependsOn: Type.Optional(Type.Unknown({ description: 'Ids of the nodes that come before it.' })),
  },
  { additionalProperties: true, description: 'See docs/workflows.md for the fields of each type.' },
)
export type NodeBody = Static<typeof NodeBody>

const webhook = Type.Object(WebhookTarget.properties, {
  ...strict,
  description: 'URL that is told about approvals of nodes and of calls of agents.',
})
const settings = {
  description: Type.Optional(Type.String({ maxLength: 10_000 })),
  inputSchema: Type.Optional(schemaOf('JSON Schema that inputs must match.')),
  outputSchema: Type.Optional(schemaOf('JSON Schema that the output must match.')),
  output: Type.Optional(
    json('The output of a completed run; its texts are templates. By default the outputs of the last nodes.'),
  ),
  onFailure: Type.Optional(
    Type.Union([Type.Literal('pause'), Type.Literal('fail')], {
      description: 'What a failed node does to its run: it waits for a repair (`pause`, the default), or fails.',
    }),
  ),
  maxCostCents: Type.Optional(
    Type.Number({
      exclusiveMinimum: 0,
      description: 'What the agents of a run may cost together, without running ones.',
    }),
  ),
  webhook: Type.Optional(webhook),
}

/** The most nodes of a definition, without the inner nodes of maps and loops. */
export const mostNodes = 10_000

export const DefinitionBody = Type.Object(
  {
    name: Type.String({ minLength: 1, maxLength: 200, pattern: storablePattern }),
    nodes: Type.Array(NodeBody, { minItems: 1, maxItems: mostNodes }),
    ...settings,
  },
  strict,
)
export type DefinitionBody = Static<typeof DefinitionBody>
export const DefinitionChange = Type.Partial(DefinitionBody, strict)

/** A definition that was checked. */
export interface Definition extends Omit<DefinitionBody, 'nodes'> {
  readonly nodes: readonly WorkflowNode[]
}
/** A run's definition without its nodes. */
export type RunSettings = Omit<DefinitionBody, 'nodes' | 'name' | 'webhook'>

const Time = Type.String({ format: 'date-time' })
const Id = (about: string) => Type.Object({ id: Type.String({ description: about }) })
export const DefinitionParams = Id('Id of the definition.')
export const RunParams = Id('Id of the workflow run.')
export const ScheduleParams = Id('Id of the schedule.')
export const NodeParams = Type.Object({
  ...RunParams.properties,
  nodeId: Type.String({ description: 'Id of the node; of a part of a map or loop `<node>.<index>`.' }),
})
export const SignalParams = Type.Object({ ...RunParams.properties, name: Type.String({ pattern: idPattern }) })

export const DefinitionInfo = Type.Object({
  id: Type.String(),
  name: Type.String(),
  version: Type.Integer({ description: 'Counts its changes; a run keeps the one that it began with.' }),
  nodes: Type.Array(Type.Unknown()),
  ...settings,
  createdAt: Time,
  updatedAt: Time,
})
export type DefinitionInfo = Static<typeof DefinitionInfo>
export const DefinitionPreview = Type.Object({
  id: Type.String(),
  name: Type.String(),
  version: Type.Integer(),
  description: Type.Optional(Type.String()),
  createdAt: Time,
  updatedAt: Time,
})
export type DefinitionPreview = Static<typeof DefinitionPreview>

const label = Type.Union(
  runStatuses.map((one) => Type.Literal(one)),
  { description: 'The status as a word; snapshots have a number.' },
)
export const CreateRun = Type.Object(
  {
    workflowDefinitionId: Type.Optional(Type.String({ pattern: idPattern })),
    definition: Type.Optional(DefinitionBody),
    input: Type.Optional(Type.Unknown({ description: '`{}` by default.' })),
    autoStart: Type.Optional(Type.Boolean({ default: true })),
    webhook: Type.Optional(webhook),
  },
  strict,
)
export type CreateRun = Static<typeof CreateRun>
export const RunAccepted = Type.Object({
  id: Type.String(),
  runId: Type.String({ description: 'The same.' }),
  status: label,
})
export type RunAccepted = Static<typeof RunAccepted>

const Failure = Type.Object({ code: Type.String(), message: Type.String() }, { additionalProperties: true })
const runFields = {
  id: Type.String(),
  runId: Type.String({ description: 'The same.' }),
  name: Type.String(),
  status: Type.Integer({
    minimum: 0,
    maximum: 5,
    description: runStatuses.map((status, i) => `${i} ${status}`).join(', '),
  }),
  workflowDefinitionId: Type.Optional(Type.String()),
  definitionVersion: Type.Optional(Type.Integer()),
  scheduleId: Type.Optional(Type.String()),
  parentRunId: Type.Optional(Type.String({ description: 'The workflow run that it is a node of.' })),
  rerunOf: Type.Optional(Type.String()),
  error: Type.Optional(Failure),
  createdAt: Time,
  startedAt: Type.Optional(Time),
  finishedAt: Type.Optional(Time),
}
export const RunListed = Type.Object(runFields)
export type RunListed = Static<typeof RunListed>
export const NodeSnapshot = Type.Object({
  id: Type.String(),
  type: Type.String(),
  status: Type.Integer({
    minimum: 0,
    maximum: 6,
    description: nodeStatuses.map((status, i) => `${i} ${status}`).join(', '),
  }),
  dependsOn: Type.Array(Type.String()),
  parent: Type.Optional(Type.String({ description: 'The map or loop that it is a part of.' })),
  attempt: Type.Integer(),
  agentRunId: Type.Optional(Type.String({ description: 'The run of the agent.' })),
  workflowRunId: Type.Optional(Type.String({ description: 'The run of the child workflow.' })),
  approvalId: Type.Optional(Type.String()),
  dueAt: Type.Optional(Type.String({ format: 'date-time', description: 'When it is started or checked next.' })),
  output: Type.Optional(Type.Unknown()),
  outputTruncated: Type.Optional(
    Type.Boolean({ description: 'The output is too large for a snapshot; `GET …/nodes/{nodeId}` has it.' }),
  ),
  error: Type.Optional(Failure),
  errorTruncated: Type.Optional(
    Type.Boolean({
      description: 'There is no more room for its error in the snapshot; `GET …/nodes/{nodeId}` has it.',
    }),
  ),
  startedAt: Type.Optional(Time),
  finishedAt: Type.Optional(Time),
})
export type NodeSnapshot = Static<typeof NodeSnapshot>
export const RunSnapshot = Type.Object({
  ...runFields,
  input: Type.Optional(Type.Unknown()),
  inputTruncated: Type.Optional(
    Type.Boolean({ description: 'The input is too large for a snapshot; `GET …/input` has it.' }),
  ),
  output: Type.Optional(Type.Unknown()),
  outputTruncated: Type.Optional(
    Type.Boolean({ description: 'The output is too large for a snapshot; `GET …/output` has it.' }),
  ),
  nodes: Type.Array(NodeSnapshot),
})

const NodeId = Type.String({ maxLength: 200, pattern: storablePattern })
export const Repair = Type.Object(
  {
    action: Type.Union(['retry_node', 'replace_node', 'add_dependency', 'abort'].map((one) => Type.Literal(one))),
    nodeId: Type.Optional(NodeId),
    node: Type.Optional(NodeBody),
    dependsOn: Type.Optional(
      Type.Union([
        Type.String({ pattern: idPattern }),
        Type.Array(Type.String({ pattern: idPattern }), { minItems: 1, maxItems: 10_000 }),
      ]),
    ),
  },
  strict,
)
export type Repair = Static<typeof Repair>
export const Rerun = Type.Object({ fromNodeId: NodeId }, strict)
export const NodeUpdate = Type.Object(
  {
    status: Type.Union(terminalStatuses.map((one) => Type.Literal(one))),
    output: Type.Optional(Type.Unknown()),
    error: Type.Optional(Type.Union([Type.String({ maxLength: 10_000 }), Failure])),
  },
  strict,
)
export type NodeUpdate = Static<typeof NodeUpdate>
export const Signal = Type.Object(
  { payload: Type.Optional(Type.Unknown()) },
  { additionalProperties: true, description: 'A body without `payload` is the payload itself.' },
)

export const ScheduleBody = Type.Object(
  {
    name: Type.Optional(Type.String({ maxLength: 200 })),
    workflowDefinitionId: Type.Optional(Type.String({ pattern: idPattern })),
    profile: Type.Optional(profileName),
    prompt: Type.Optional(Type.String({ minLength: 1, maxLength: 100_000 })),
    cron: Type.String({ minLength: 1, maxLength: 200, description: 'Five fields, or six with seconds in front.' }),
    timezone: Type.Optional(Type.String({ maxLength: 64, description: 'An IANA name; UTC by default.' })),
    input: Type.Optional(Type.Unknown()),
    overlap: Type.Optional(
      Type.Union(
        ['skip', 'queue', 'allow'].map((one) => Type.Literal(one)),
        {
          description:
            'When its last run is still under way: nothing (`skip`, the default), one run after it (`queue`), or both at once (`allow`).',
        },
      ),
    ),
    catchUp: Type.Optional(
      Type.Union(
        ['none', 'one', 'all'].map((one) => Type.Literal(one)),
        {
          description:
            'Which missed times to run when no server was running: none (default), the last one, or all, at most 100.',
        },
      ),
    ),
    jitterSeconds: Type.Optional(
      Type.Integer({ minimum: 0, maximum: 3_600, description: 'Each start is delayed by up to this many seconds.' }),
    ),
  },
  strict,
)
export type ScheduleBody = Static<typeof ScheduleBody>
export const Schedule = Type.Object({
  id: Type.String(),
  ...ScheduleBody.properties,
  status: Type.Union([Type.Literal('active'), Type.Literal('paused')]),
  nextAt: Type.Optional(Time),
  nextTimes: Type.Optional(Type.Array(Time, { description: 'The next five.' })),
  createdAt: Time,
  updatedAt: Time,
})
export type Schedule = Static<typeof Schedule>
export const Firing = Type.Object({
  at: Time,
  kind: Type.Union([Type.Literal('cron'), Type.Literal('manual')]),
  outcome: Type.Union(['started', 'queued', 'skipped', 'missed', 'failed'].map((one) => Type.Literal(one))),
  runId: Type.Optional(Type.String()),
  message: Type.Optional(Type.String()),
})
export type Firing = Static<typeof Firing>
