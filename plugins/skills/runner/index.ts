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
