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

/** One version of a skill: the reference that a session keeps. */
export const PinnedSkill = Type.Object({
  name: Type.String(),
  digest: Type.String({ description: 'SHA-256 over the paths, contents and executable bits of its files.' }),
})
export type PinnedSkill = Static<typeof PinnedSkill>

/** One complete version of a skill. */
export interface SkillContent extends PinnedSkill {
  readonly description: string
  /** The text after the front matter of `SKILL.md`. */
  readonly body: string
  /** Every file, including `SKILL.md`. */
  readonly files: readonly SkillFile[]
}

/** What a skill requires of a profile. */
export interface SkillNeeds extends PinnedSkill {
  /** Platform tools, by the names that profiles use. A tool that is unknown here keeps the name that the skill's author gave it. */
  readonly allowedTools: readonly string[]
  /** True when the skill contains scripts, which run in a sandbox. */
  readonly requiresSandbox: boolean
  /** Total bytes of its files. */
  readonly totalBytes: number
}

/** The most bytes of the files of all skills of a profile. A runner keeps them in memory during a run. */
export const mostAttachedBytes = 64 * 1024 * 1024

/** Names every platform skill that explains a tool of the profile. */
export const skillsOfTools = 'using-*'

/** A profile's skill names, and its tools, by which `using-*` is resolved. */
export interface AttachedSkills {
  readonly skills: readonly string[]
  readonly tools: readonly string[]
}

/** The skills that a tenant may attach to profiles. */
export interface Skills {
  /** Returns the existing skills in the order of their names in the profile, and the names of the missing ones. */
  attached(
    tenantId: string,
    profile: AttachedSkills,
  ): Promise<{ readonly found: readonly SkillNeeds[]; readonly missing: readonly string[] }>
  /** Returns a version that a session keeps, even when its skill was replaced or deleted. */
  content(tenantId: string, digest: string): Promise<SkillContent | undefined>
  /** Registers a listener for changes of what `using-*` resolves to, which happen when runners with other tools have started. */
  onOthers(listener: () => void): void
}
export const Skills = capability<Skills>('conductor.skills')

/** The contents of skills in a runner, sent by conductors. */
export interface SkillCache {
  /** Returns the versions in the requested order. Undefined for a version that is not here. */
  take(tenantId: string, pinned: readonly PinnedSkill[]): readonly (SkillContent | undefined)[]
  /** Keeps a version. AppError 400 `skill_corrupt` when it does not match its digest. */
  put(tenantId: string, skill: SkillContent): void
}
export const SkillCache = capability<SkillCache>('runner.skill-cache')

/** The tools by which a model reads the skills of its session. Every session with skills has them, whatever its profile lists. */
export const skillTools = ['skill_read', 'skill_resource'] as const
/** The tool that runs a script of a skill. Sessions with a sandbox have it. */
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

/** The digest of a skill's files: of one line per file, in the order of their paths. */
export const digestOf = (files: readonly SkillFile[]): string =>
  digestOfListed(files.map(({ path, bytes, executable }) => ({ path, executable, sha256: sha256(bytes) })))

/** The same of files whose contents were digested before. */
export function digestOfListed(
  files: readonly { readonly path: string; readonly executable: boolean; readonly sha256: string }[],
): string {
  const lines = files
    .toSorted((a, b) => (a.path < b.path ? -1 : 1))
    .map(({ path, executable, sha256: digest }) => `${digest} ${executable ? 'x' : '-'} ${path}\n`)
  return sha256(lines.join(''))
}

export const sha256 = (data: Uint8Array | string): string => createHash('sha256').update(data).digest('hex')
