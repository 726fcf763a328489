import { type Static, type TSchema, Type } from '@sinclair/typebox'
import { DelegationAnswer, WaitingCall } from '../delegation.ts'
import { ObjectWrite } from '../object-writes.ts'
import { runnerErrors } from '../runner-errors.ts'
import type { Wire } from './route.ts'
import * as bodies from './runner-bodies.ts'
import { PinnedSkill, type SkillContent, skillErrors } from '../skills.ts'

// The tools of a runner and of its sessions, and their calls for conductors: a part of the runner's wire.

const ofTools = { access: 'network', tags: ['tools'] as readonly string[] }
const inGet = <S extends TSchema>(json: S) => ({ method: 'GET', reply: { status: 200, json } }) as const
const ofSession = { headers: bodies.tenant, params: bodies.session }

export const toolRoutes = {
  toolSpecs: {
    ...ofTools,
    ...inGet(bodies.ToolSpecs),
    path: '/runner/toolkit/specs',
    summary: 'List the tools of this runner',
    description: 'Every platform tool, whatever profiles allow.',
  },
  sessionToolSpecs: {
    ...ofTools,
    ...inGet(bodies.ToolSpecs),
    path: '/runner/sessions/:id/toolkit/specs',
    summary: 'List the tools of a session',
    description: 'What its profile allowed when the session was created.',
    ...ofSession,
  },
  invokeTool: {
    ...ofTools,
    method: 'POST',
    path: '/runner/sessions/:id/toolkit/invoke',
    summary: 'Invoke a tool',
    description: "A tool's own failure is 200 with `result.ok` false.",
    ...ofSession,
    body: bodies.InvokeTool,
    reply: { status: 200, json: bodies.InvokeResult },
    errors: [runnerErrors.toolNotAllowed],
  },
  delegations: {
    ...ofTools,
    ...inGet(Type.Array(WaitingCall)),
    path: '/runner/sessions/:id/delegations',
    summary: 'Take the delegations of a session',
    description: 'Waiting delegations and app calls. They count as taken, and wait until they are answered.',
    ...ofSession,
  },
  objectWrites: {
    ...ofTools,
    ...inGet(Type.Array(ObjectWrite)),
    path: '/runner/sessions/:id/object-writes',
    summary: 'List what a run wrote to the object store',
    description: 'With tools of this runner, after number `after`; earlier writes are forgotten.',
    ...ofSession,
    query: Type.Object({ runId: Type.String({ maxLength: 128 }), after: Type.Integer({ minimum: 0, default: 0 }) }),
    absent: true,
  },
  answerDelegation: {
    ...ofTools,
    method: 'POST',
    path: '/runner/sessions/:id/delegations',
    summary: 'Answer a delegation',
    description: 'An answer that is no longer awaited is no error.',
    ...ofSession,
    body: Type.Composite([Type.Object({ id: Type.String() }), DelegationAnswer]),
    reply: { status: 204 },
  },
} as const satisfies Wire

// How conductors send a version of a skill to a runner: a part of the runner's wire.

/** A skill of 64 MiB in base64; its description is a small part of it. */
const maxSkillBytes = 96 * 1024 * 1024

const WireSkill = Type.Composite([
  PinnedSkill,
  Type.Object({
    description: Type.String(),
    body: Type.String(),
    files: Type.Array(
      Type.Object({
        path: Type.String(),
        data: Type.String({ description: 'Base64.' }),
        executable: Type.Boolean(),
      }),
    ),
  }),
])
type WireSkill = Static<typeof WireSkill>

export const encodeSkill = ({ files, ...skill }: SkillContent): WireSkill => ({
  ...skill,
  files: files.map(({ path, bytes, executable }) => ({
    path,
    data: Buffer.from(bytes).toString('base64'),
    executable,
  })),
})
export const decodeSkill = ({ files, ...skill }: WireSkill): SkillContent => ({
  ...skill,
  files: files.map(({ path, data, executable }) => ({ path, bytes: Buffer.from(data, 'base64'), executable })),
})

export const skillRoutes = {
  putSkill: {
    access: 'network',
    tags: ['skills'],
    method: 'POST',
    path: '/runner/skills',
    summary: 'Send a version of a skill',
    description: 'A version that sessions use. It is cached by its digest until the space is needed for others.',
    headers: bodies.tenant,
    body: WireSkill,
    bodyLimit: maxSkillBytes,
    reply: { status: 204 },
    errors: [skillErrors.skillCorrupt, runnerErrors.skillsNotKept],
  },
} as const satisfies Wire
