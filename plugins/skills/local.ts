import { readFile, rename, writeFile } from 'node:fs/promises'
import { newId } from '#contracts/ids'
import { overLimit } from '#contracts/limits'
import type { Page } from '#contracts/paging'
import type { SkillContent } from '#contracts/skills'
import { listOf } from '#kit/lists'
import { nameTaken } from './errors.ts'
import { skillMd, type SkillPackage } from './package.ts'
import {
  mostStaged,
  type Skill,
  type SkillStore,
  type Source,
  stagingMs,
  type WholeSkill,
  type Write,
} from './store.ts'

interface Kept {
  readonly skill: SkillPackage
  readonly source: Source
  readonly version: number
  readonly createdAt: string
  readonly updatedAt: string
}
interface Staged {
  readonly tenantId: string
  readonly skill: SkillPackage
  readonly expiresAt: number
}

/** The most versions per tenant, or of the machine, that no name points to any more. They are kept because sessions may still use them. */
const mostFormer = 20

/**
 * Skills without a database. Skills of the machine are visible to every tenant; skills of a tenant end with the process. When a tenant deletes a
 * skill of the machine, a file records it, if a folder is configured.
 */
export class LocalSkillStore implements SkillStore {
  readonly #own = new Map<string, Map<string, Kept>>()
  readonly #stagings = new Map<string, Staged>()
  /** Former versions by tenant and digest. Those of the machine are under the tenant ''. */
  readonly #former = new Map<string, Map<string, SkillPackage>>()
  readonly #tombstones: Tombstones
  #seeds: ReadonlyMap<string, Kept> = new Map()

  /** `tombstones` is the path of the file; undefined keeps the deletions in memory only. */
  constructor(tombstones: string | undefined) {
    this.#tombstones = new Tombstones(tombstones)
  }

  async list(tenantId: string, page: Page) {
    const all = [...(await this.#of(tenantId)).values()].sort((a, b) => (a.skill.name < b.skill.name ? -1 : 1))
    return listOf(all, page, 100, toSkill)
  }
  async find(tenantId: string, name: string): Promise<WholeSkill | undefined> {
    const kept = (await this.#of(tenantId)).get(name)
    return kept && { ...toSkill(kept), body: kept.skill.body }
  }
  async file(tenantId: string, name: string, path: string) {
    const skill = (await this.#of(tenantId)).get(name)?.skill
    const file = skill?.files.find((one) => one.path === path)
    if (!file) return undefined
    const resource = skill?.resources.find((one) => one.path === path)
    const { bytes, executable } = file
    const described = resource ?? {
      path: skillMd,
      contentType: 'text/markdown',
      sha256: '',
      executable,
      bytes: bytes.length,
    }
    return { ...described, data: bytes }
  }
  async needs(tenantId: string, names: readonly string[]) {
    const all = await this.#of(tenantId)
    return names.flatMap((name) => all.get(name)?.skill ?? [])
  }
  async content(tenantId: string, digest: string): Promise<SkillContent | undefined> {
    const kept = [...(this.#own.get(tenantId)?.values() ?? []), ...this.#seeds.values()]
    return (
      kept.find(({ skill }) => skill.digest === digest)?.skill ??
      this.#former.get(tenantId)?.get(digest) ??
      this.#former.get('')?.get(digest)
    )
  }
  async count(tenantId: string): Promise<number> {
    return this.#own.get(tenantId)?.size ?? 0
  }
  async put(tenantId: string, skill: SkillPackage, { source, replace, most }: Write): Promise<WholeSkill> {
    const former = (await this.#of(tenantId)).get(skill.name)
    if (former && !replace) throw nameTaken(skill.name)
    const own = this.#own.get(tenantId) ?? new Map<string, Kept>()
    if (!own.has(skill.name) && own.size >= most) throw overLimit('skills', most)
    this.#own.set(tenantId, own)
    const updatedAt = new Date().toISOString()
    const changed = former && former.skill.digest !== skill.digest ? 1 : 0
    const version = (former?.version ?? 1) + changed
    const kept = { skill, source, version, createdAt: former?.createdAt ?? updatedAt, updatedAt }
    if (former) this.#keepFormer(tenantId, former)
    own.set(skill.name, kept)
    return { ...toSkill(kept), body: skill.body }
  }
  async remove(tenantId: string, name: string): Promise<boolean> {
    const kept = (await this.#of(tenantId)).get(name)
    if (!kept) return false
    this.#keepFormer(tenantId, kept)
    if (kept.source === 'platform') await this.#tombstones.add(tenantId, name)
    else this.#own.get(tenantId)!.delete(name)
    return true
  }
  async stage(tenantId: string, skill: SkillPackage): Promise<string> {
    const id = newId('stg')
    for (const [other, { expiresAt }] of this.#stagings) if (expiresAt <= Date.now()) this.#stagings.delete(other)
    this.#stagings.set(id, { tenantId, skill, expiresAt: Date.now() + stagingMs })
    const theirs = [...this.#stagings].filter(([, staged]) => staged.tenantId === tenantId)
    for (const [oldest] of theirs.slice(0, -mostStaged)) this.#stagings.delete(oldest)
    return id
  }
  async commit(tenantId: string, stagingId: string, { most }: Pick<Write, 'most'>): Promise<WholeSkill | undefined> {
    const staged = this.#stagings.get(stagingId)
    if (staged?.tenantId !== tenantId || staged.expiresAt <= Date.now()) return undefined
    const made = await this.put(tenantId, staged.skill, { source: 'imported', replace: true, most })
    this.#stagings.delete(stagingId)
    return made
  }
  async reconcile(_tenantId: string, seeds: readonly SkillPackage[]): Promise<void> {
    const now = new Date().toISOString()
    const kept = seeds.map((skill): [string, Kept] => {
      const former = this.#seeds.get(skill.name)
      if (former?.skill.digest === skill.digest) return [skill.name, former]
      if (former) this.#keepFormer('', former)
      const version = former ? former.version + 1 : 1
      return [skill.name, { skill, source: 'platform', version, createdAt: former?.createdAt ?? now, updatedAt: now }]
    })
    for (const [name, former] of this.#seeds)
      if (!seeds.some((seed) => seed.name === name)) this.#keepFormer('', former)
    this.#seeds = new Map(kept)
  }

  /** All that a tenant sees. */
  async #of(tenantId: string): Promise<Map<string, Kept>> {
    const deleted = await this.#tombstones.of(tenantId)
    const all = new Map([...this.#seeds].filter(([name]) => !deleted.includes(name)))
    for (const [name, kept] of this.#own.get(tenantId) ?? []) all.set(name, kept)
    return all
  }
  #keepFormer(tenantId: string, { skill }: Kept): void {
    const former = this.#former.get(tenantId) ?? new Map<string, SkillPackage>()
    this.#former.set(tenantId, former)
    former.delete(skill.digest)
    former.set(skill.digest, skill)
    if (former.size > mostFormer) former.delete(former.keys().next().value!)
  }
}

const toSkill = ({ skill, source, version, createdAt, updatedAt }: Kept): Skill => {
  const { files: _, body: __, ...rest } = skill
  return { ...rest, source, version, createdAt, updatedAt }
}

type Deleted = Map<string, readonly string[]>

/** Which skills of the machine each tenant deleted, in a file of JSON: `{tenant: [name]}`. */
class Tombstones {
  readonly #file: string | undefined
  #known: Promise<Deleted> | undefined
  #written: Promise<unknown> = Promise.resolve()

  constructor(file: string | undefined) {
    this.#file = file
  }
  async of(tenantId: string): Promise<readonly string[]> {
    return (await this.#read()).get(tenantId) ?? []
  }
  async add(tenantId: string, name: string): Promise<void> {
    const known = await this.#read()
    known.set(tenantId, [...new Set([...(known.get(tenantId) ?? []), name])].sort())
    const file = this.#file
    if (file === undefined) return
    // Writes run one after the other and replace the file as a whole, so a reader never sees half of it.
    const write = async (): Promise<void> => {
      await writeFile(`${file}.new`, JSON.stringify(Object.fromEntries(known), null, 2))
      await rename(`${file}.new`, file)
    }
    await (this.#written = this.#written.then(write, write))
  }
  #read(): Promise<Deleted> {
    this.#known ??= readTombstones(this.#file).catch((error: unknown) => {
      this.#known = undefined
      throw error
    })
    return this.#known
  }
}

/** Throws when the file has another form: a broken file must not bring deleted skills back. */
async function readTombstones(file: string | undefined): Promise<Deleted> {
  if (file === undefined) return new Map()
  const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return '{}'
    throw error
  })
  try {
    return new Map(Object.entries(JSON.parse(text) as Record<string, string[]>))
  } catch (error) {
    throw new Error(`${file} is not JSON: correct it, or remove it to use all skills of this machine again`, {
      cause: error,
    })
  }
}
