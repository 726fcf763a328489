import type { SkillContent, SkillFile } from '#contracts/skills'
import type { PlatformTool, ToolContext, ToolResult } from '#contracts/tools'
import { isShown, skillMd } from '../package.ts'

const name = { type: 'string', minLength: 1, maxLength: 64, description: 'Name of one of your skills.' }

/** The call may have to start a sandbox first, which has its own limit. */
const placeMs = 90_000
const startMs = 65_000
/** The most file names that an answer lists after a request for an unknown file. */
const mostNamed = 50

/** The second step of progressive disclosure: the complete instructions of one skill. */
export const skillRead: PlatformTool = {
  name: 'skill_read',
  description: 'Reads one of your skills: its instructions, and the names of the files that come with it.',
  inputSchema: { type: 'object', properties: { name }, required: ['name'], additionalProperties: false },
  async execute({ name: wanted }, context) {
    const skill = skillNamed(String(wanted), context)
    if ('ok' in skill) return skill
    const { description, body, files } = skill
    const others = files.filter(({ path }) => path !== skillMd)
    const list = others.map(
      ({ path, bytes, executable }) => `- ${path} (${bytes.length} bytes${executable ? ', executable' : ''})`,
    )
    const parts = [
      `# ${skill.name}`,
      description,
      body,
      ...(list.length === 0 ? [] : [`Files of this skill:\n${list.join('\n')}`]),
    ]
    return { ok: true, content: parts.join('\n\n') }
  },
}

/** The third step: one file of a skill. A file that is not text is put into the sandbox, if the session has one. */
export const skillResource: PlatformTool = {
  name: 'skill_resource',
  description:
    'Reads a text file that comes with one of your skills. A file that is no text, or a long one, is put into your sandbox if you have one.',
  inputSchema: {
    type: 'object',
    properties: {
      name,
      path: {
        type: 'string',
        minLength: 1,
        maxLength: 512,
        description: 'Path inside the skill, e.g. references/forms.md.',
      },
    },
    required: ['name', 'path'],
    additionalProperties: false,
  },
  timeoutMs: placeMs + startMs,
  async execute({ name: wanted, path }, context) {
    const skill = skillNamed(String(wanted), context)
    if ('ok' in skill) return skill
    const file = skill.files.find((one) => one.path === path)
    if (!file) {
      const paths = skill.files.map((one) => one.path)
      const more = paths.length > mostNamed ? `, and ${paths.length - mostNamed} more` : ''
      const some = paths.slice(0, mostNamed).join(', ')
      return failed(`The skill '${skill.name}' has no file '${String(path)}'; it has: ${some}${more}.`)
    }
    if (isShown(file.bytes)) return { ok: true, content: Buffer.from(file.bytes).toString('utf8') }
    return place(skill, file, context)
  },
}

/** Puts a file where the scripts of its skill find it. */
async function place({ name: skill }: SkillContent, file: SkillFile, { sandbox }: ToolContext): Promise<ToolResult> {
  const { path, bytes, executable } = file
  if (!sandbox)
    return failed(
      `'${path}' (${bytes.length} bytes) is no text, or too long to be shown, and this session has no sandbox for it.`,
    )
  const folder = `.skills/${skill}`
  const files = [{ path, data: Buffer.from(bytes).toString('base64'), executable }]
  const placed = await sandbox.call('place_files', { folder, files }, placeMs)
  return placed.ok ? { ok: true, content: `The file is in your sandbox: ${folder}/${path}` } : placed
}

/** A skill that exists in the tenant but not in this session gets the same answer as an unknown skill. */
function skillNamed(wanted: string, { skills = [] }: ToolContext): SkillContent | ToolResult {
  const found = skills.find((skill) => skill.name === wanted)
  const names = skills.map((skill) => skill.name).join(', ')
  return found ?? failed(`This session has no skill '${wanted}'; it has: ${names || 'none'}.`)
}

const failed = (content: string): ToolResult => ({ ok: false, content })
