import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { Skills } from '#contracts/skills'
import { createSkillFolders } from './folders.ts'

/** Skills as folders of this machine, the same for every tenant: `<dir>/<name>/SKILL.md`, and what belongs to it beside. */
export default definePlugin({
  name: 'skill-folders',
  config: Settings({
    dir: Type.Optional(Type.String({ description: 'Folder of skill folders; there are none unless given.' })),
  }),
  provides: { skills: Skills },
  async setup(ctx) {
    return { skills: createSkillFolders(ctx.config.dir) }
  },
})
