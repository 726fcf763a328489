import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { RunJournal } from '#contracts/run-journal'
import { openFolder } from './folder.ts'
import { keepRuns } from './keep.ts'
import { createMirror, type Mirror } from './mirror.ts'
import { replay } from './replay.ts'

/** Append-only JSONL logs of runs, one file per run, in a folder of the operator's. Specification 2.7. */
export default definePlugin({
  name: 'run-journal',
  config: Settings({
    dir: Type.Optional(
      Type.String({ minLength: 1, description: 'AGENT_ORC_RUNS_DIR: where the files are written; none when empty.' }),
    ),
  }),
  provides: { journal: RunJournal },
  async setup({ config, log, onStart, onStop }) {
    const { dir } = config
    if (dir === undefined) return { journal: { mirror: (store) => store, keep: async (store) => store } }
    const folder = await openFolder(dir)
    const mirrors: Mirror[] = []
    onStart(async () => {
      for (const mirror of mirrors) mirror.start()
    })
    onStop(async () => {
      for (const mirror of mirrors) await mirror.stop()
    })
    return {
      journal: {
        mirror(store) {
          const mirror = createMirror(store, folder, log)
          mirrors.push(mirror)
          return mirror.store
        },
        async keep(store, restore) {
          for await (const run of replay(folder)) restore(run)
          return keepRuns(store, folder)
        },
      },
    }
  },
})
