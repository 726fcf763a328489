import { definePlugin, maybe } from '#kernel'
import { Skills } from '#contracts/skills'
import { PlatformTools } from '#contracts/tools'
import { listFiles, readFile, writeFile } from './files.ts'
import { shell } from './shell.ts'
import { createRunSkillScript } from './skill-script.ts'

/** Tools that act inside a session's sandbox. A session has those that its profile lists. */
export default definePlugin({
  name: 'sandbox-tools',
  requires: { skills: maybe(Skills) },
  provides: { tools: PlatformTools },
  async setup(ctx) {
    return {
      tools: {
        shell,
        read_file: readFile,
        write_file: writeFile,
        list_files: listFiles,
        run_skill_script: createRunSkillScript(ctx.deps.skills),
      },
    }
  },
})
