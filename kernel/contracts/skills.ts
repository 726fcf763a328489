import { capability } from '../plugin.ts'

/** A file of a skill, by its path inside the skill's folder, with slashes: `SKILL.md`, `scripts/convert.py`. */
export interface SkillFile {
  readonly path: string
  readonly bytes: Uint8Array
  readonly executable: boolean
}

/** The skills that a tenant may attach to profiles. */
export interface Skills {
  /** Returns the names of skills that do not exist. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** Returns every file in the skill's folder; undefined when there is no such skill. */
  files(tenantId: string, name: string): Promise<readonly SkillFile[] | undefined>
}
export const Skills = capability<Skills>('core.skills')
