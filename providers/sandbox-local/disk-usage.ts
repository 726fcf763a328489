import { execFile } from 'node:child_process'

/** Counting may take so long: whoever has more files has too many. */
const longestMs = 60_000
/** A file takes this much at least: the disk has room for so many files, too. */
const leastBytes = 4_096

/**
 * What folders take on the disk, in bytes, by their paths; Infinity where that cannot be counted. `du` and not a walk of our own,
 * because a tenant may nest folders deeper than a path may be long.
 */
export async function diskUsage(folders: readonly string[]): Promise<Map<string, number>> {
  const together = await count(folders)
  if (typeof together === 'object') return together
  const alone = new Map<string, number>()
  for (const folder of folders) {
    let counted = await count([folder])
    // A worker may have taken the permissions from its own folders.
    if (counted === 'denied' && (await run('chmod', ['-R', 'u+rwX', '--', folder]))) counted = await count([folder])
    alone.set(folder, typeof counted === 'object' ? (counted.get(folder) ?? 0) : Infinity)
  }
  return alone
}

type Counts = Map<string, number> | 'denied' | 'slow'

async function count(folders: readonly string[]): Promise<Counts> {
  const blocks = await du(['-skx'], folders)
  if (typeof blocks === 'string') return blocks
  // Only GNU's can count files.
  const files = await du(['-sx', '--inodes'], folders)
  const filesIn = (folder: string): number => (typeof files === 'object' ? (files.get(folder) ?? 0) : 0)
  return new Map([...blocks].map(([folder, kib]) => [folder, Math.max(kib * 1024, filesIn(folder) * leastBytes)]))
}

async function du(options: readonly string[], folders: readonly string[]): Promise<Counts> {
  const said = await run('du', [...options, '--', ...folders])
  if (!said) return 'slow'
  // What goes while it is counted is no failure; what cannot be read is.
  if (/Permission denied/.test(said.stderr)) return 'denied'
  return new Map(
    [...said.stdout.matchAll(/^(\d+)\t(.*)$/gm)].map(([, amount, path]) => [path!, Number(amount)] as const),
  )
}

/** Undefined when it took too long, or does not know its options. */
const run = (command: string, args: readonly string[]): Promise<{ stdout: string; stderr: string } | undefined> =>
  new Promise((done, fail) => {
    const options = { env: { PATH: '/usr/bin:/bin', LC_ALL: 'C' }, timeout: longestMs, maxBuffer: 1024 * 1024 }
    execFile('nice', ['-n', '19', command, ...args], options, (error, stdout, stderr) => {
      // What a shell answers for a program that is not there.
      if (error?.code === 'ENOENT' || Number(error?.code) === 127) return fail(error!)
      done(error && (error.killed || Number(error.code) !== 1) ? undefined : { stdout, stderr })
    })
  })
