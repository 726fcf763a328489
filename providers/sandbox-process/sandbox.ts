import type { ChildProcess } from 'node:child_process'
import { setTimeout as wait } from 'node:timers/promises'
import { type LocalSandbox, signalTree, stopTree, treeOf } from '#local-sandboxes'

/** How long a worker may take to end by itself; its runner has asked it before. */
const graceMs = 2_000

/** The group of a worker, and whatever descends from it. */
export function sandboxOf(worker: ChildProcess, workerEnded: Promise<unknown>): LocalSandbox {
  const pid = worker.pid!
  let paused = false
  // Its id may be another process's as soon as it has ended.
  const lives = (): boolean => worker.exitCode === null && worker.signalCode === null
  // What the worker left in its group goes with it.
  const ended = workerEnded.then(() => signalTree([-pid], 'SIGKILL'))
  return {
    ended,
    async pause() {
      if (!lives()) return
      signalTree([-pid], 'SIGSTOP')
      await stopTree(pid)
      paused = true
    },
    async resume() {
      if (lives()) signalTree([-pid, ...treeOf(pid)], 'SIGCONT')
      paused = false
    },
    async end() {
      if (!lives()) return ended
      const known = treeOf(pid)
      if (!paused) {
        signalTree(known, 'SIGTERM')
        await Promise.race([ended, wait(graceMs, undefined, { ref: false })])
      }
      // Also what has left the group, and is only known as a descendant of what is gone now.
      signalTree([...(lives() ? [-pid, ...treeOf(pid)] : []), ...known], 'SIGKILL')
      await ended
    },
  }
}
