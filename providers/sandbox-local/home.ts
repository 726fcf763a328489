import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { chmod, chown, lstat, mkdir, mkdtemp, readdir, rename, stat } from 'node:fs/promises'
import { connect, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'

const prefix = 'agent-orc-sandboxes-'
/** A socket on which the owner of the folder listens while it lives. The kernel closes the socket however the owner ends. */
const lifeSign = 'alive'
/** `sockaddr_un.sun_path` is 104 bytes on macOS and 108 on Linux, the closing NUL included. */
const longestSocketPath = 103

interface HomeOptions {
  /** Where the folder is created. Undefined: the system's temporary folder. */
  readonly dir?: string | undefined
  /** Whether other users may pass through the folder, namely those that sandboxes run as. */
  readonly passable?: boolean
}

/** The folders of one session. */
export interface Folders {
  readonly workspace: string
  readonly state: string
}

/** A folder of this process alone, with one folder per session. It is removed when the process ends, or at the next start. */
export interface Home {
  readonly path: string
  /** Creates the folders on first use; `uid` then owns them. */
  folders(key: string, uid?: number): Promise<Folders>
  remove(key: string): Promise<void>
  /** Bytes on disk of the sessions' folders, by key. */
  diskUsage(keys: readonly string[]): Promise<Map<string, number>>
  close(): Promise<void>
}

export async function openHome({ dir = tmpdir(), passable = false }: HomeOptions): Promise<Home> {
  const parent = resolve(dir)
  const sample = join(parent, `${prefix}XXXXXX`, lifeSign)
  if (Buffer.byteLength(sample) > longestSocketPath) {
    throw new Error(`${parent} is too long for the folder of sandboxes: the system allows ${longestSocketPath} bytes.`)
  }
  await mkdir(parent, { recursive: true })
  await sweep(parent)
  // The folder gets its final name only once its socket listens. Otherwise another process that starts in between would remove the folder.
  const unfinished = await mkdtemp(join(parent, `.${prefix}`))
  const sign = createServer((socket) => socket.destroy())
  sign.listen(join(unfinished, lifeSign)).unref()
  await once(sign, 'listening')
  if (passable) await chmod(unfinished, 0o711)
  const path = unfinished.replace(`/.${prefix}`, `/${prefix}`)
  await rename(unfinished, path)
  return {
    path,
    async folders(key, uid) {
      const folder = join(path, key)
      const folders = { workspace: join(folder, 'workspace'), state: join(folder, 'state') }
      await mkdir(folder, { recursive: true, mode: passable ? 0o711 : 0o700 })
      for (const place of Object.values(folders)) {
        await mkdir(place, { recursive: true, mode: 0o700 })
        if (uid !== undefined) await chown(place, uid, uid)
      }
      return folders
    },
    remove: (key) => removeTree(join(path, key)),
    async diskUsage(keys) {
      const used = await diskUsage(keys.map((key) => join(path, key)))
      return new Map(keys.map((key) => [key, used.get(join(path, key)) ?? 0]))
    },
    async close() {
      await removeTree(path)
      sign.close()
    },
  }
}

/** Removes the folders of processes that have ended. */
async function sweep(parent: string): Promise<void> {
  for (const name of await readdir(parent)) {
    const folder = join(parent, name)
    if (!name.startsWith(prefix) || !(await isOurs(folder)) || (await isAlive(join(folder, lifeSign)))) continue
    await removeTree(folder)
  }
}

/** In a temporary folder any user may create a folder with that name, so check its owner. */
const isOurs = (folder: string): Promise<boolean> =>
  lstat(folder).then(
    (found) => found.isDirectory() && found.uid === process.getuid?.(),
    () => false,
  )

const isAlive = (sign: string): Promise<boolean> =>
  new Promise((done) => {
    const socket = connect(sign)
    socket.once('connect', () => {
      socket.destroy()
      done(true)
    })
    // Only a refused connection or a missing socket proves that nobody listens.
    socket.once('error', ({ code }: NodeJS.ErrnoException) => done(code !== 'ECONNREFUSED' && code !== 'ENOENT'))
  })

/** Uses `rm`, because Node's own function fails on folders that are nested deeper than a path may be long. */
async function removeTree(path: string): Promise<void> {
  if (await ran('rm', '-rf', '--', path)) return
  // A worker may have removed the permissions of its own folders.
  await ran('chmod', '-R', 'u+rwx', '--', path)
  if (!(await ran('rm', '-rf', '--', path)) && (await stat(path).catch(() => undefined))) {
    throw new Error(`${path} cannot be removed.`)
  }
}

const ran = (command: string, ...args: string[]): Promise<boolean> =>
  new Promise((done) => {
    execFile(command, args, { env: { PATH: '/usr/bin:/bin' } }, (error) => done(!error))
  })

/** Milliseconds for one count. A tenant whose count takes longer has too many files. */
const longestMs = 60_000
/** Every file counts as at least this many bytes, because the disk also has room for a limited number of files. */
const leastBytes = 4_096

/** Bytes on disk of folders, by path; Infinity where counting fails. Uses `du`, because a tenant may nest folders deeper than a path may be long. */
export async function diskUsage(folders: readonly string[]): Promise<Map<string, number>> {
  const together = await count(folders)
  if (typeof together === 'object') return together
  const alone = new Map<string, number>()
  for (const folder of folders) {
    let counted = await count([folder])
    // A worker may have removed the permissions of its own folders.
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
  // A file that disappears during the count is no failure; an unreadable file is.
  if (/Permission denied/.test(said.stderr)) return 'denied'
  return new Map(
    [...said.stdout.matchAll(/^(\d+)\t(.*)$/gm)].map(([, amount, path]) => [path!, Number(amount)] as const),
  )
}

/** Undefined when the command took too long, or does not know its options. */
const run = (command: string, args: readonly string[]): Promise<{ stdout: string; stderr: string } | undefined> =>
  new Promise((done, fail) => {
    const options = { env: { PATH: '/usr/bin:/bin', LC_ALL: 'C' }, timeout: longestMs, maxBuffer: 1024 * 1024 }
    execFile('nice', ['-n', '19', command, ...args], options, (error, stdout, stderr) => {
      // The exit code by which a shell reports a missing program.
      if (error?.code === 'ENOENT' || Number(error?.code) === 127) return fail(error!)
      done(error && (error.killed || Number(error.code) !== 1) ? undefined : { stdout, stderr })
    })
  })
