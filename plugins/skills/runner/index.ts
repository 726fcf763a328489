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
} from '#contracts/skills'
import { PlatformTools } from '#contracts/tools'
import { skillRead, skillResource } from './tools.ts'

/** The runner's part of skills: the versions that its sessions keep, and the tools by which models read them. */
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

/** A run that is about to begin asks again for what was brought a moment ago: until then it stays, whatever else comes. */
const restMs = 30_000

interface Kept {
  readonly tenantId: string
  readonly skill: SkillContent
  readonly bytes: number
  usedAt: number
}

/** Versions of skills by tenant and digest, least recently used first. Runs under way hold what they have by themselves. */
export class SkillVersions implements SkillCache {
  readonly #maxBytes: number
  /** Of one tenant: what a session of it can need, and no more than leaves room for others. */
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
  /** Whatever a tenant brings in a moment, it is its own that goes for it. */
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
