import type { Skills } from '#contracts/skills'
import type { PlatformTool, ToolResult } from '#contracts/tools'
import { inSandbox, pathOf } from './sandbox.ts'
import { graceMs, longestMs, timeoutSeconds } from './shell.ts'

const failed = (content: string): ToolResult => ({ ok: false, content })

/** Runs a script of a skill that the session's profile has. Its files are brought into the sandbox with each call. */
export const createRunSkillScript = (skills: Skills | undefined): PlatformTool => ({
  name: 'run_skill_script',
  description: 'Runs a script of one of your skills in the sandbox, from the folder of the skill.',
  inputSchema: {
    type: 'object',
    properties: {
      skill: { type: 'string', minLength: 1, maxLength: 64 },
      script: pathOf('Path inside the skill, e.g. scripts/convert.py.'),
      args: { type: 'array', items: { type: 'string', maxLength: 10_000 }, maxItems: 100, default: [] },
      timeoutSeconds,
    },
    required: ['skill', 'script'],
    additionalProperties: false,
  },
  timeoutMs: longestMs,
  async execute({ skill, script, args, timeoutSeconds: seconds }, context) {
    const name = String(skill)
    // What the profile does not have is told as if it did not exist.
    const mine = context.skills?.includes(name) ? await skills?.files(context.tenantId, name) : undefined
    if (!mine) {
      return failed(`There is no skill '${name}' in this session; it has: ${context.skills?.join(', ') || 'none'}.`)
    }
    if (!mine.some(({ path }) => path === script)) {
      const scripts = mine.flatMap(({ path }) => (path.startsWith('scripts/') ? [path] : []))
      return failed(
        `The skill '${name}' has no file '${String(script)}'; its scripts: ${scripts.join(', ') || 'none'}.`,
      )
    }
    const files = mine.map(({ path, bytes, executable }) => ({
      path,
      data: Buffer.from(bytes).toString('base64'),
      executable,
    }))
    const input = { folder: `.skills/${name}`, files, path: script, args, timeoutSeconds: seconds }
    return inSandbox(context, 'run_script', input, Number(seconds) * 1_000 + graceMs)
  },
})
