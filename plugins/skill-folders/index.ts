import { lstat, readdir, readFile } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'
import { Type } from '@sinclair/typebox'
import { type AppError, definePlugin, errorTable, Settings } from '#kernel'
import { type SkillFile, Skills } from '#contracts/skills'

const skillErrors = errorTable('skill-folders', {
  skillTooLarge: { status: 500, about: 'The skill is larger than 8 MiB or has more than 500 files.' },
})

/** Skills as folders of this machine, the same for every tenant: `<dir>/<name>/SKILL.md` and the files beside it. */
export default definePlugin({
  name: 'skill-folders',
  config: Settings({
    dir: Type.Optional(Type.String({ description: 'Folder of skill folders; there are none unless given.' })),
  }),
  errors: skillErrors,
  provides: { skills: Skills },
  async setup(ctx) {
    return { skills: createSkillFolders(ctx.config.dir) }
  },
})

const skillTooLarge = (name: string): AppError =>
  skillErrors.skillTooLarge({ message: `The skill '${name}' is larger than 8 MiB or has more than 500 files.` })

/** The form that the Agent Skills convention gives names. */
const nameForm = /^[a-z0-9][a-z0-9-]{0,63}$/
/** What one tool call carries into a sandbox. */
const maxBytes = 8 * 1024 * 1024
const maxFiles = 500

/** Folders are read for each call, so a changed skill is used from the next call on. Links are left out, wherever they point. */
export function createSkillFolders(dir: string | undefined): Skills {
  const folderOf = (name: string): string | undefined => (dir && nameForm.test(name) ? join(dir, name) : undefined)
  const has = async (name: string): Promise<boolean> => {
    const folder = folderOf(name)
    const found = folder && (await lstat(join(folder, 'SKILL.md')).catch(() => undefined))
    return found ? found.isFile() : false
  }
  return {
    async unknown(_tenantId, names) {
      const there = await Promise.all(names.map(has))
      return names.filter((_, index) => !there[index])
    },
    async files(_tenantId, name) {
      const folder = folderOf(name)
      return folder && (await has(name)) ? readFolder(folder, name) : undefined
    },
  }
}

async function readFolder(folder: string, name: string): Promise<SkillFile[]> {
  const files: SkillFile[] = []
  let total = 0
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue
    const file = join(entry.parentPath, entry.name)
    const { mode, size } = await lstat(file)
    total += size
    if (total > maxBytes || files.length >= maxFiles) throw skillTooLarge(name)
    const path = relative(folder, file).split(sep).join('/')
    files.push({ path, bytes: await readFile(file), executable: (mode & 0o111) !== 0 })
  }
  return files
}
