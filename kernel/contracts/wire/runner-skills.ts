import { type Static, Type } from '@sinclair/typebox'
import { runnerErrors } from '../runner-errors.ts'
import { PinnedSkill, type SkillContent, skillErrors } from '../skills.ts'
import { tenant } from './runner-bodies.ts'
import type { Wire } from './route.ts'

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
    headers: tenant,
    body: WireSkill,
    bodyLimit: maxSkillBytes,
    reply: { status: 204 },
    errors: [skillErrors.skillCorrupt, runnerErrors.skillsNotKept],
  },
} as const satisfies Wire
