import { digestOf, type PinnedSkill, type SkillCache, type SkillContent, skillErrors } from '#contracts/skills'

/** A run that is about to begin asks again for what was brought a moment ago: until then it stays, whatever else comes. */
const restMs = 30_000

interface Kept {
  readonly skill: SkillContent
  readonly bytes: number
  usedAt: number
}

/** Versions of skills by tenant and digest, least recently used first. Runs under way hold what they have by themselves. */
export class SkillVersions implements SkillCache {
  readonly #maxBytes: number
  readonly #kept = new Map<string, Kept>()
  bytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
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
    this.bytes += bytes - (this.#kept.get(key)?.bytes ?? 0)
    this.#kept.delete(key)
    this.#kept.set(key, { skill, bytes, usedAt: Date.now() })
    this.#makeRoom()
  }
  #makeRoom(): void {
    const before = Date.now() - restMs
    for (const [key, { bytes, usedAt }] of this.#kept) {
      if (this.bytes <= this.#maxBytes || usedAt > before) return
      this.#kept.delete(key)
      this.bytes -= bytes
    }
  }
}

const keyOf = (tenantId: string, digest: string): string => `${tenantId}\n${digest}`
