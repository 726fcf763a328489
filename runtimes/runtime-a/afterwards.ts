import { spawn } from 'node:child_process'
import type { Socket } from 'node:net'

/**
 * Has a shell do something when this process dies before it could do it, however it dies: the pipe that the shell reads ends
 * with us. Returns how to let go of it.
 */
export function afterwards(script: string, argument: string): () => void {
  const shell = spawn('/bin/sh', ['-c', `read -r _; ${script}`, 'sh', argument], {
    env: {},
    stdio: ['pipe', 'ignore', 'ignore'],
    // What is sent to our group, by a terminal say, is not for it.
    detached: true,
  })
  shell.on('error', () => {})
  shell.stdin.on('error', () => {})
  // It holds nothing open: neither the process nor its pipe.
  shell.unref()
  ;(shell.stdin as Socket).unref()
  return () => void shell.kill('SIGKILL')
}
