import type { Profile } from '#contracts/profiles'
import type { RuntimeEvent } from '#contracts/run-event'
import type { RunnerSession } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import { type SkillCache, type SkillContent, skillScriptTool, skillsOfTools, skillTools } from '#contracts/skills'
import { hasSandbox } from './sessions.ts'

/** Characters of all descriptions in the index together. Models read the index with every message. */
const indexChars = 12_000

/** The tools of a session: those of its profile, and those that read its skills. */
export function toolNamesOf(profile: Profile): readonly string[] {
  const added = hasSandbox(profile) ? [...skillTools, skillScriptTool] : skillTools
  return [...new Set([...profile.tools, ...added])]
}

/** The session's skills, in the versions that the session keeps. Throws AppError 409 `skills_missing` until a conductor has brought all of them. */
export function skillsOf(cache: SkillCache | undefined, { tenantId, profile }: RunnerSession): readonly SkillContent[] {
  const { pinnedSkills = [] } = profile
  if (!cache) throw runnerErrors.skillsNotKept()
  const skills = cache.take(tenantId, pinnedSkills)
  const missing = pinnedSkills.filter((_, i) => !skills[i])
  if (missing.length === 0) return skills as readonly SkillContent[]
  const digests = missing.map(({ digest }) => digest)
  throw runnerErrors.skillsMissing({ detail: { digests } })
}

/** The skills that a profile names and its session lacks, because they were deleted before the session began. */
export function skillsAbsent({ skills, pinnedSkills = [] }: Profile): RuntimeEvent | undefined {
  const absent = skills.filter((name) => name !== skillsOfTools && !pinnedSkills.some((pinned) => pinned.name === name))
  if (absent.length === 0) return undefined
  const message = `This session began without a version of the skill ${absent.join(', ')}, and goes on without it.`
  return { type: 'progress', stage: 'skills_absent', message }
}

/** The profile as a runtime gets it: the index of the skills is a part of the instructions, so that every runtime shows it to its model. */
export function withSkills(profile: Profile, skills: readonly SkillContent[]): Profile {
  const { instructions } = profile
  const index = indexOf(skills, hasSandbox(profile))
  return {
    ...profile,
    instructions: instructions === '' ? index : `${instructions}\n\n${index}`,
    tools: [...toolNamesOf(profile)],
  }
}

function indexOf(skills: readonly SkillContent[], sandboxed: boolean): string {
  const whole = skills.map(({ description }) => description.replaceAll(/\s+/g, ' '))
  const most = longestOf(whole.map(({ length }) => length))
  // Never cut a character in half: model servers refuse such a text.
  const shown = whole.map((text) =>
    text.length <= most ? text : `${text.slice(0, Math.max(0, most - 1)).replace(/[\uD800-\uDBFF]$/, '')}…`,
  )
  const cut = whole.filter(({ length }) => length > most).length
  const scripts = sandboxed ? ', and run its scripts with `run_skill_script`' : ''
  return [
    '# Skills',
    '',
    `Before you begin a task that one of these skills is for, read the skill with the tool \`skill_read\`. Read files that it mentions with \`skill_resource\`${scripts}.`,
    '',
    ...skills.map(({ name }, i) => `- ${name}: ${shown[i]}`),
    ...(cut === 0 ? [] : ['', `(${cut} of the descriptions are cut here; \`skill_read\` shows them whole.)`]),
  ].join('\n')
}

/** The length to which descriptions are cut so that all fit. Only the longest ones are cut, all to the same length. */
function longestOf(lengths: readonly number[]): number {
  let left = indexChars
  const sorted = lengths.toSorted((a, b) => a - b)
  for (const [i, length] of sorted.entries()) {
    const share = Math.floor(left / (sorted.length - i))
    if (length > share) return share
    left -= length
  }
  return Infinity
}
