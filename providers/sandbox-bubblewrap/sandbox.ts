import { setTimeout as wait } from 'node:timers/promises'
import { type LocalSandbox, signalTree, stopTree, treeOf } from '#local-sandboxes'
import type { Bwrap } from './launch.ts'

/** How long a worker may take to end by itself; its runner has asked it before. */
const graceMs = 2_000

/** The processes of a sandbox. `init` is its first one as this machine numbers it: what is inside descends from it. */
export function sandboxOf(
  bwrap: Bwrap,
  init: number,
  { runnerUrl, ended }: Pick<LocalSandbox, 'runnerUrl' | 'ended'>,
): LocalSandbox {
  let paused = false
  return {
    ...(runnerUrl === undefined ? {} : { runnerUrl }),
    ended,
    async pause() {
      if (bwrap.lives()) await stopTree(init)
      paused = true
    },
    async resume() {
      if (bwrap.lives()) signalTree(treeOf(init), 'SIGCONT')
      paused = false
    },
    async end() {
      if (!paused) {
        signalTree(bwrap.processes(), 'SIGTERM')
        await Promise.race([ended, wait(graceMs, undefined, { ref: false })])
      }
      await kill(bwrap)
      await ended
    },
  }
}

/** With the first process of its namespace the kernel kills all others. */
export async function kill(bwrap: Bwrap): Promise<void> {
  const init = await bwrap.init.catch(() => undefined)
  if (bwrap.lives() && init !== undefined) signalTree([init], 'SIGKILL')
}
