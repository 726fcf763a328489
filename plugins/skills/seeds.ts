import { lstat, readdir, readFile } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import { isAppError } from '#kernel'
import { skillErrors } from '#contracts/skills'
import { invalidSkill } from './errors.ts'
import { isSkillName } from './format.ts'
import { type GivenFile, mostFiles, readFolder, type SkillPackage } from './package.ts'

/** The folder of the shipped skills, which explain the tools of the platform. */
const shipped = fileURLToPath(new URL('./platform/', import.meta.url))
/** The largest skill of the machine, in bytes. */
const mostSeedBytes = 8 * 1024 * 1024

interface Log {
  warn(fields: object, message: string): void
}

/** Reads the platform's skills: the shipped ones and those of the operator's folder, which replace shipped ones of the same name. */
export async function readSeeds(dir: string | undefined, log: Log): Promise<SkillPackage[]> {
  const seeds = new Map<string, SkillPackage>()
  for (const folder of dir === undefined ? [shipped] : [shipped, dir]) {
    for (const name of await foldersOf(folder)) {
      try {
        const { skill, problems, forgiven } = await readFolder(await filesOf(join(folder, name), name))
        if (!skill) throw invalidSkill(problems)
        if (forgiven.length > 0) log.warn({ skill: name, forgiven }, 'a skill of the machine deviates from the format')
        seeds.set(skill.name, skill)
      } catch (error) {
        if (!isAppError(error)) throw error
        // One bad folder must not disable the other skills, but the operator must hear of it.
        log.warn({ skill: name, problems: error.detail['problems'] }, 'a skill of the machine cannot be used')
      }
    }
  }
  return [...seeds.values()]
}

/** The folders in a folder. Links to folders are left out, wherever they point. */
async function foldersOf(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return []
    throw error
  })
  return entries
    .filter((entry) => entry.isDirectory() && isSkillName(entry.name))
    .map(({ name }) => name)
    .sort()
}

/** The files of a folder, with paths that start with `name`. Links are listed but not followed. Throws `invalid_skill` when the folder is too large. */
export async function filesOf(folder: string, name: string): Promise<GivenFile[]> {
  const files: GivenFile[] = []
  let total = 0
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (entry.isDirectory()) continue
    const file = join(entry.parentPath, entry.name)
    const path = `${name}/${relative(folder, file).split(sep).join('/')}`
    if (!entry.isFile()) {
      files.push({ path, bytes: Buffer.alloc(0), executable: false, special: true })
      continue
    }
    const { mode, size } = await lstat(file)
    total += size
    if (total > mostSeedBytes || files.length >= 2 * mostFiles)
      throw skillErrors.invalidSkill({
        message: `The skill '${name}' is larger than 8 MiB or has more than ${mostFiles} files.`,
        detail: { problems: [`The skill '${name}' is larger than 8 MiB or has more than ${mostFiles} files.`] },
      })
    files.push({ path, bytes: await readFile(file), executable: (mode & 0o111) !== 0 })
  }
  return files
}
