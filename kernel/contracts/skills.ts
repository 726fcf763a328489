import { createHash } from 'node:crypto'
import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import { errorTable } from './errors.ts'

/** A file of a skill, by its path inside the skill's folder, with slashes: `SKILL.md`, `scripts/convert.py`. */
export interface SkillFile {
  readonly path: string
  readonly bytes: Uint8Array
  readonly executable: boolean
}

/** A skill as one of its versions: what a session keeps, and what a runner has of it. */
export const PinnedSkill = Type.Object({
  name: Type.String(),
  digest: Type.String({ description: 'SHA-256 over the paths, contents and executable bits of its files.' }),
})
export type PinnedSkill = Static<typeof PinnedSkill>

/** One version of a skill, whole. */
export interface SkillContent extends PinnedSkill {
  readonly description: string
  /** What follows the front matter of `SKILL.md`. */
  readonly body: string
  /** Every file, `SKILL.md` among them. */
  readonly files: readonly SkillFile[]
}

/** What a skill requires of a profile. */
export interface SkillNeeds extends PinnedSkill {
  /** Tools of the platform, by the names that profiles use; one that is unknown here keeps the name that its author gave it. */
  readonly allowedTools: readonly string[]
  /** It brings scripts, which run in a sandbox. */
  readonly requiresSandbox: boolean
  /** Of its files. */
  readonly totalBytes: number
}

/** Bytes of the files of all skills of a profile: a runner has them in memory while a run goes on. */
export const mostAttachedBytes = 64 * 1024 * 1024

/** Names every platform skill that explains a tool of the profile. */
export const skillsOfTools = 'using-*'

/** What names the skills of a profile, and its tools, by which `using-*` is resolved. */
export interface AttachedSkills {
  readonly skills: readonly string[]
  readonly tools: readonly string[]
}

/** The skills that a tenant may attach to profiles. */
export interface Skills {
  /** Returns the skills that there are, in the order of their names in the profile, and the names of those that are not there. */
  attached(
    tenantId: string,
    profile: AttachedSkills,
  ): Promise<{ readonly found: readonly SkillNeeds[]; readonly missing: readonly string[] }>
  /** Returns a version that is kept for a session, also when its skill was replaced or deleted. */
  content(tenantId: string, digest: string): Promise<SkillContent | undefined>
  /** Called when `using-*` stands for other skills than before, because runners with other tools have started. */
  onOthers(listener: () => void): void
}
export const Skills = capability<Skills>('conductor.skills')

/** The contents of skills in a runner, sent by conductors. */
export interface SkillCache {
  /** Returns the versions in the order asked for; undefined for one that is not here. */
  take(tenantId: string, pinned: readonly PinnedSkill[]): readonly (SkillContent | undefined)[]
  /** Keeps a version. AppError 400 `skill_corrupt` when it does not match its digest. */
  put(tenantId: string, skill: SkillContent): void
}
export const SkillCache = capability<SkillCache>('runner.skill-cache')

/** The tools by which a model reads the skills of its session. Every session with skills has them, whatever its profile lists. */
export const skillTools = ['skill_read', 'skill_resource'] as const
/** Runs a script of a skill; sessions with a sandbox have it. */
export const skillScriptTool = 'run_skill_script'

export const skillErrors = errorTable('skills', {
  invalidSkill: {
    status: 400,
    about: 'The skill does not follow the Agent Skills format; `problems` has every reason.',
  },
  skillCorrupt: { status: 400, message: 'The files of the skill do not match its digest.' },
  skillVersionGone: {
    status: 410,
    message: 'A version of a skill that this session uses no longer exists: begin a new session.',
  },
  skillNeedsTools: {
    named: true,
    status: 400,
    about: 'The skill names tools in `allowed-tools` that the profile does not have.',
  },
  skillsTooLarge: {
    status: 400,
    message: 'The skills of the profile have more than 64 MiB of files together: leave some out.',
  },
  skillNeedsSandbox: {
    named: true,
    status: 400,
    message: 'The skill has scripts, which need a sandbox: give the profile a sandbox, or leave the skill out.',
  },
})

/** The digest of a skill's files: one line for each, in the order of their paths. */
export function digestOf(files: readonly SkillFile[]): string {
  const lines = files
    .map(({ path, bytes, executable }) => ({ path, text: `${sha256(bytes)} ${executable ? 'x' : '-'} ${path}\n` }))
    .toSorted((a, b) => (a.path < b.path ? -1 : 1))
  return sha256(lines.map(({ text }) => text).join(''))
}

export const sha256 = (data: Uint8Array | string): string => createHash('sha256').update(data).digest('hex')
