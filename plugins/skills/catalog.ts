import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import { isId } from '#contracts/ids'
import type { Listing, Page } from '#contracts/paging'
import {
  type AttachedSkills,
  mostAttachedBytes,
  type SkillContent,
  type SkillNeeds,
  type Skills,
  skillsOfTools,
} from '#contracts/skills'
import { invalidSkill, noSuchFile, noSuchSkill, noSuchStaging } from './errors.ts'
import { isSkillName, type SkillHeader } from './format.ts'
import { type Reading, readWritten, type SkillPackage } from './package.ts'
import { type PlatformSkills, platformTool } from './platform.ts'
import type { Skill, SkillStore, WholeSkill } from './store.ts'

/** The fields of a skill as a client writes them. */
export type SkillInput = Omit<SkillHeader, 'allowedTools' | 'metadata'> &
  Partial<Pick<SkillHeader, 'allowedTools' | 'metadata'>> & { readonly body: string }

/** The result of checking an upload, before its commit. */
export interface DryRun extends Omit<Reading, 'skill'> {
  readonly stagingId: string | undefined
}

/** The skills of tenants: lists, writes, imports, and the skills that profiles attach. */
export class Catalog implements Skills {
  readonly #store: SkillStore
  readonly #platform: PlatformSkills
  readonly #limits: TenantLimits | undefined
  /** The version of the platform's skills that this process last gave to each tenant. */
  readonly #reconciled = new Map<string, readonly SkillPackage[]>()

  constructor(store: SkillStore, platform: PlatformSkills, limits: TenantLimits | undefined) {
    this.#store = store
    this.#platform = platform
    this.#limits = limits
  }

  async list(tenantId: string, page: Page): Promise<Listing<Skill>> {
    await this.#reconcile(tenantId)
    return this.#store.list(tenantId, page)
  }
  async find(tenantId: string, name: string): Promise<WholeSkill> {
    const found = isSkillName(name)
      ? (await this.#reconcile(tenantId), await this.#store.find(tenantId, name))
      : undefined
    if (!found) throw noSuchSkill()
    return found
  }
  async file(tenantId: string, name: string, path: string) {
    if (!isSkillName(name)) throw noSuchSkill()
    await this.#reconcile(tenantId)
    const file = path.includes('\0') ? undefined : await this.#store.file(tenantId, name, path)
    if (!file) throw noSuchFile()
    return file
  }
  /** Rejects with 400 `invalid_skill`, listing every problem. */
  async create(tenantId: string, { body, allowedTools = [], metadata = {}, ...rest }: SkillInput): Promise<WholeSkill> {
    const { skill, problems } = readWritten({ ...rest, allowedTools, metadata }, body)
    if (!skill) throw invalidSkill(problems)
    await this.#reconcile(tenantId)
    const { most, mostBytes } = this.mostOf(tenantId)
    if (skill.totalBytes > mostBytes) throw overLimit('skillBytes', mostBytes)
    this.#limits?.stored.admit(tenantId)
    const made = await this.#store.put(tenantId, skill, { source: 'user', replace: false, most })
    this.#limits?.stored.add(tenantId, skill.totalBytes)
    return made
  }
  async remove(tenantId: string, name: string): Promise<void> {
    if (isSkillName(name)) {
      await this.#reconcile(tenantId)
      if (await this.#store.remove(tenantId, name)) {
        // A platform skill of the same name may become visible again. It is restored here, because other conductors have reconciled already and would
        // not do so again.
        this.#reconciled.delete(tenantId)
        return this.#reconcile(tenantId)
      }
    }
    throw noSuchSkill()
  }
  /** Stores an upload for its commit, if the upload has no problems. */
  async stage(tenantId: string, { skill, ...reading }: Reading): Promise<DryRun> {
    if (!skill) return { ...reading, stagingId: undefined }
    this.#limits?.stored.admit(tenantId)
    const stagingId = await this.#store.stage(tenantId, skill)
    this.#limits?.stored.add(tenantId, skill.totalBytes)
    return { ...reading, stagingId }
  }
  async commit(tenantId: string, stagingId: string): Promise<WholeSkill> {
    const { most } = this.mostOf(tenantId)
    const made = isId('stg', stagingId) ? await this.#store.commit(tenantId, stagingId, { most }) : undefined
    if (!made) throw noSuchStaging()
    return made
  }
  /** How many skills of its own a tenant may have, and how large one may be: never more than a profile can attach. */
  mostOf(tenantId: string): { readonly most: number; readonly mostBytes: number } {
    const { skills: most, skillBytes } = this.#limits?.of(tenantId) ?? defaultLimits
    return { most, mostBytes: Math.min(skillBytes, mostAttachedBytes) }
  }

  async attached(tenantId: string, { skills, tools }: AttachedSkills) {
    if (skills.length === 0) return { found: [], missing: [] }
    await this.#reconcile(tenantId)
    const named = [...new Set(skills)].filter((name) => name !== skillsOfTools)
    const implied = skills.includes(skillsOfTools) ? await this.#platform.ofTools(tools) : []
    const wanted = [...new Set([...named, ...implied])].filter(isSkillName)
    const there = new Map((await this.#store.needs(tenantId, wanted)).map((skill) => [skill.name, skill]))
    const found = wanted.flatMap((name): SkillNeeds[] => {
      const skill = there.get(name)
      if (!skill) return []
      const { digest, requiresSandbox, allowedTools, totalBytes } = skill
      return [{ name, digest, requiresSandbox, totalBytes, allowedTools: [...new Set(allowedTools.map(platformTool))] }]
    })
    return { found, missing: named.filter((name) => !there.has(name)) }
  }
  onOthers(listener: () => void): void {
    this.#platform.onOthers(listener)
  }
  content(tenantId: string, digest: string): Promise<SkillContent | undefined> {
    return this.#store.content(tenantId, digest)
  }

  /**
   * Gives the platform's skills to a tenant when the tenant first needs skills. So the boot does not wait for it, and new tenants need no special
   * case. It runs again when the platform's skills change, for instance when runners bring more tools.
   */
  async #reconcile(tenantId: string): Promise<void> {
    const seeds = await this.#platform.current()
    if (this.#reconciled.get(tenantId) === seeds) return
    await this.#store.reconcile(tenantId, seeds)
    this.#reconciled.set(tenantId, seeds)
  }
}
