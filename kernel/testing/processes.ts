import { readdirSync, readFileSync } from 'node:fs'

/** Processes of this machine whose environment or command line holds `marker`, each as its id and its command. */
export function processesWith(marker: string): string[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .flatMap((pid) => {
      const command = read(`/proc/${pid}/cmdline`)
      const found = command.includes(marker) || read(`/proc/${pid}/environ`).includes(marker)
      return found ? [`${pid} ${command.replaceAll('\0', ' ').slice(0, 200)}`] : []
    })
}

/** It may end while we look, or be another user's. */
function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
