import { Type } from '@sinclair/typebox'
import { Gauge } from 'prom-client'
import { definePlugin, Settings } from '#kernel'
import {
  digestOf,
  mostAttachedBytes,
  type PinnedSkill,
  SkillCache,
  type SkillContent,
  skillErrors,
  type SkillFile,
} from '#contracts/skills'
import { type PlatformTool, PlatformTools, type ToolContext, type ToolResult } from '#contracts/tools'
import { isShown, skillMd } from '../package.ts'

/** The runner's part of skills: a cache of the versions that its sessions use, and the tools by which models read skills. */
export default definePlugin({
  name: 'skill-cache',
  config: Settings({
    maxBytes: Type.Integer({
      default: 256 * 1024 * 1024,
      minimum: 0,
      description:
        'Bytes of skill files in memory. Beyond that the least recently used ones are dropped, and conductors send them again.',
    }),
  }),
  errors: skillErrors,
  provides: { cache: SkillCache, tools: PlatformTools },
  async setup({ config, metrics }) {
    const cache = new SkillVersions(config.maxBytes)
    const gauge: Gauge = new Gauge({
      name: 'runner_skill_cache_bytes',
      help: 'Files of skills in the memory of this runner.',
      registers: [metrics],
      collect: () => gauge.set(cache.bytes),
    })
    return { cache, tools: { [skillRead.name]: skillRead, [skillResource.name]: skillResource } }
  },
})

/** A version that was used this recently is not evicted, because a run that is about to begin will ask for it again. */
const restMs = 30_000

interface Kept {
  readonly tenantId: string
  readonly skill: SkillContent
  readonly bytes: number
  usedAt: number
}

/** A cache of skill versions by tenant and digest, least recently used first. A running run keeps its own reference to its versions. */
export class SkillVersions implements SkillCache {
  readonly #maxBytes: number
  /** The most bytes of one tenant: half of the cache, but never less than what one session can need. */
  readonly #maxOfTenant: number
  readonly #kept = new Map<string, Kept>()
  bytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
    this.#maxOfTenant = Math.max(mostAttachedBytes, maxBytes / 2)
  }

  take(tenantId: string, pinned: readonly PinnedSkill[]): readonly (SkillContent | undefined)[] {
    return pinned.map(({ digest }) => {
      const key = keyOf(tenantId, digest)
      const kept = this.#kept.get(key)
      if (!kept) return undefined
      kept.usedAt = Date.now()
      this.#kept.delete(key)
      this.#kept.set(key, kept)
      return kept.skill
    })
  }
  put(tenantId: string, skill: SkillContent): void {
    if (digestOf(skill.files) !== skill.digest) throw skillErrors.skillCorrupt()
    const key = keyOf(tenantId, skill.digest)
    const bytes = skill.files.reduce((sum, file) => sum + file.bytes.length, skill.body.length)
    this.#forget(key)
    this.bytes += bytes
    this.#kept.set(key, { tenantId, skill, bytes, usedAt: Date.now() })
    this.#holdTo(tenantId)
    this.#makeRoom()
  }
  /** Evicts only versions of the same tenant, so that one tenant cannot displace the versions of others. */
  #holdTo(tenantId: string): void {
    const theirs = [...this.#kept].filter(([, kept]) => kept.tenantId === tenantId)
    let bytes = theirs.reduce((sum, [, kept]) => sum + kept.bytes, 0)
    for (const [key, kept] of theirs) {
      if (bytes <= this.#maxOfTenant) return
      this.#forget(key)
      bytes -= kept.bytes
    }
  }
  #makeRoom(): void {
    const before = Date.now() - restMs
    for (const [key, { usedAt }] of this.#kept) {
      if (this.bytes <= this.#maxBytes || usedAt > before) return
      this.#forget(key)
    }
  }
  #forget(key: string): void {
    this.bytes -= this.#kept.get(key)?.bytes ?? 0
    this.#kept.delete(key)
  }
}

const keyOf = (tenantId: string, digest: string): string => `${tenantId}\n${digest}`

const name = { type: 'string', minLength: 1, maxLength: 64, description: 'Name of one of your skills.' }

/** The call may have to start a sandbox first, which has its own limit. */
const placeMs = 90_000
const startMs = 65_000
/** The most file names that an answer lists after a request for an unknown file. */
const mostNamed = 50

/** The second step of progressive disclosure: the complete instructions of one skill. */
const skillRead: PlatformTool = {
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
const skillResource: PlatformTool = {
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
