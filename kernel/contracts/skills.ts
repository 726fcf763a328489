import { capability } from '../plugin.ts'

/** A file of a skill, by its path inside the skill's folder, with slashes: `SKILL.md`, `scripts/convert.py`. */
export interface SkillFile {
  readonly path: string
  readonly bytes: Uint8Array
  readonly executable: boolean
}

/** The skills that a tenant may attach to profiles. */
export interface Skills {
  /** Which of the names there are none of. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** Everything in its folder. Undefined: there is no such skill. */
  files(tenantId: string, name: string): Promise<readonly SkillFile[] | undefined>
}
export const Skills = capability<Skills>('core.skills')
