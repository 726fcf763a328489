import { type PlacedProfile, type Profile, substrateOf } from '#contracts/profiles'
import {
  mostAttachedBytes,
  type PinnedSkill,
  skillErrors,
  type SkillNeeds,
  type Skills,
  skillScriptTool,
  skillTools,
} from '#contracts/skills'
import { profileErrors } from './errors.ts'

type Attaching = Pick<Profile, 'skills' | 'tools' | 'mcpServers' | 'workerMode' | 'sandbox'>

/** Refuses a profile that names a missing skill, or one that the profile cannot use. Specification 4.3. */
export async function checkSkills(skills: Skills | undefined, tenantId: string, profile: Attaching): Promise<void> {
  const [first] = profile.skills
  if (first === undefined) return
  if (!skills) throw profileErrors.unknownSkill({ name: first })
  const { found, missing } = await skills.attached(tenantId, profile)
  if (missing[0] !== undefined) throw profileErrors.unknownSkill({ name: missing[0] })
  checkAll(profile, found)
}

/**
 * The profile as a session is created from it, with the skill versions that the session keeps. A deleted skill is left out, and the run reports
 * that. A skill whose newest version the profile cannot use is refused, as it would be on a write.
 */
export async function pinSkills(
  skills: Skills | undefined,
  tenantId: string,
  placed: PlacedProfile | undefined,
): Promise<PlacedProfile | undefined> {
  if (!placed || !skills || placed.profile.skills.length === 0) return placed
  const { found } = await skills.attached(tenantId, placed.profile)
  if (found.length === 0) return placed
  checkAll(placed.profile, found)
  const pinnedSkills = found.map(({ name, digest }): PinnedSkill => ({ name, digest }))
  return { ...placed, profile: { ...placed.profile, pinnedSkills } }
}

function checkAll(profile: Attaching, skills: readonly SkillNeeds[]): void {
  for (const skill of skills) checkFit(profile, skill)
  if (skills.reduce((sum, { totalBytes }) => sum + totalBytes, 0) > mostAttachedBytes)
    throw skillErrors.skillsTooLarge()
}

/** A profile must have the tools that its skill may use: `allowed-tools` never gives an agent a tool. */
function checkFit(profile: Attaching, { name, allowedTools, requiresSandbox }: SkillNeeds): void {
  const sandboxed = substrateOf(profile) !== undefined
  if (requiresSandbox && !sandboxed) throw skillErrors.skillNeedsSandbox({ name })
  const has = new Set([...profile.tools, ...skillTools, ...(sandboxed ? [skillScriptTool] : [])])
  const lacking = allowedTools.filter((tool) => !has.has(tool) && !isOfServer(profile, tool))
  if (lacking.length === 0) return
  throw skillErrors.skillNeedsTools({
    name,
    message: `The skill uses ${lacking.join(', ')} by its allowed-tools, and the profile does not have that: add it to \`tools\`, or leave the skill out.`,
    detail: { tools: lacking },
  })
}

/** The tools of an external MCP server are known only once it is asked, so a profile that names the server may use any of them. */
const isOfServer = ({ mcpServers }: Attaching, tool: string): boolean =>
  mcpServers.some((server) => tool.startsWith(`mcp__${server}__`) || tool === `mcp__${server}`)
