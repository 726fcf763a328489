import { spawn } from 'node:child_process'

/**
 * `read` returns when our end of the pipe closes, also by kill -9; then the worker's group and whatever descends from it
 * are killed. A parent-death signal would reach the worker alone, not what it started.
 */
const script = `read -r _
tree() { for pid in $(cat /proc/"$1"/task/*/children 2>/dev/null); do tree "$pid"; done; echo "$1"; }
kill -KILL -"$1" $(tree "$1") 2>/dev/null`

export interface Guard {
  /** The worker is gone: its id may be another process's soon. */
  end(): void
}

/** A shell that kills the worker should this process die. */
export function startGuard(pid: number): Guard {
  const guard = spawn('/bin/sh', ['-c', script, 'guard', String(pid)], {
    cwd: '/',
    env: { PATH: '/usr/bin:/bin' },
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  guard.stdin.on('error', () => {})
  guard.on('error', () => {})
  return {
    end() {
      guard.kill('SIGKILL')
      guard.stdin.destroy()
    },
  }
}
