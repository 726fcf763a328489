import { mkdir, readdir, rm, stat, writeFile } from 'node:fs/promises'
import { basename, dirname, join, relative, resolve, sep } from 'node:path'
import { type Command, Option } from 'commander'
import { isAppError } from '#kernel'
import { isSkillName } from '../plugins/skills/format.ts'
import { type Reading, readFolder } from '../plugins/skills/package.ts'
import { pathProblem } from '../plugins/skills/paths.ts'
import { filesOf } from '../plugins/skills/seeds.ts'
import { devData } from './dev-data.ts'
import { CliError, type Terminal, terminalOf } from './terminal.ts'

interface Options {
  readonly url?: string
  readonly key?: string
  readonly data: string
  readonly all?: boolean
}

/** What a conductor says of a skill, as far as it is used here. */
interface Skill {
  readonly name: string
  readonly source: string
  readonly version: number
  readonly digest: string
  readonly resources: readonly { readonly path: string; readonly executable: boolean }[]
}
type DryRun = Pick<Reading, 'name' | 'problems' | 'forgiven'> & { readonly stagingId?: string }

export function addSkills(program: Command): void {
  const skills = program.command('skills').description('skills in the SKILL.md format, as folders')
  const command = (usage: string, description: string): Command =>
    skills
      .command(usage)
      .description(description)
      .argument('<dir>', 'a skill folder, or a folder of them')
      .option('--json', 'answer as JSON')
  const online = (usage: string, description: string): Command =>
    command(usage, description)
      .addOption(new Option('--url <url>', 'conductor; default: the development server of --data').env('CONDUCTOR_URL'))
      .addOption(new Option('--key <key>', 'API key of the tenant').env('AGENT_ORC_API_KEY'))
      .option('--data <dir>', 'data directory of agent-orc dev', '.agent-orc')
  command('validate', 'say everything that is wrong with skill folders').action(
    async (dir: string, _: object, self: Command) => validate(dir, terminalOf(self)),
  )
  online('import', 'import skill folders into a tenant; what is there under their names is replaced').action(
    async (dir: string, options: Options, self: Command) => importAll(dir, await callerOf(options), terminalOf(self)),
  )
  online('pull', "write a tenant's skills as folders")
    .option('--all', 'those of the platform as well')
    .action(async (dir: string, options: Options, self: Command) =>
      pull(dir, await callerOf(options), options.all ?? false, terminalOf(self)),
    )
}

async function validate(dir: string, terminal: Terminal): Promise<void> {
  let bad = 0
  for (const folder of await foldersIn(dir)) {
    const reading = await readLocal(folder)
    if (reading.problems.length > 0) bad++
    report({ ...reading, valid: reading.problems.length === 0 }, terminal)
  }
  if (bad > 0) throw new CliError(`${bad} of the folders ${bad === 1 ? 'is not a skill' : 'are not skills'}`)
}

async function importAll(dir: string, call: Call, terminal: Terminal): Promise<void> {
  for (const folder of await foldersIn(dir)) {
    const name = basename(folder)
    const files = await read(folder, name)
    const form = new FormData()
    for (const { path, bytes, executable, special = false } of files) {
      form.append(
        'files',
        new Blob([Buffer.from(bytes)], { type: special ? 'inode/symlink' : 'application/octet-stream' }),
        path,
      )
      if (executable) form.append('executable', path)
    }
    const tried = await call<DryRun>('POST', '/api/skills/import', form)
    report({ ...tried, valid: tried.stagingId !== undefined }, terminal)
    if (tried.stagingId === undefined) throw new CliError(`'${name}' is not a skill; nothing of it was imported`)
    const { version } = await call<Skill>('POST', `/api/skills/import/${tried.stagingId}/commit`)
    terminal.progress(`imported ${tried.name}, version ${version}`)
  }
}

async function pull(dir: string, call: Call, all: boolean, terminal: Terminal): Promise<void> {
  const skills = (await call<Skill[]>('GET', '/api/skills')).filter(({ source }) => all || source !== 'platform')
  const left: string[] = []
  for (const skill of skills) left.push(...(await pullOne(dir, call, skill)))
  for (const file of left) terminal.progress(`${file} was there before and is no file of its skill; it was left`)
  terminal.print({ skills: skills.map(({ name }) => name), left }, () => `${skills.length} skills are in ${dir}`)
}

/** Writes one skill as a folder. Resolves to the files there that it does not have. */
async function pullOne(dir: string, call: Call, { name, digest, resources }: Skill): Promise<string[]> {
  if (!isSkillName(name))
    throw new CliError(`the server sent a skill name that cannot be a folder: ${JSON.stringify(name)}`)
  const files = [{ path: 'SKILL.md', executable: false }, ...resources]
  for (const { path, executable } of files) {
    const problem = pathProblem(path)
    if (problem !== undefined)
      throw new CliError(`the server names a file of '${name}' that must not be written: ${problem}`)
    const query = new URLSearchParams({ path }).toString()
    const bytes = await call<Buffer>('GET', `/api/skills/${encodeURIComponent(name)}/file?${query}`)
    const file = join(dir, name, path)
    await mkdir(dirname(file), { recursive: true })
    // What is there may be a link, or have another mode.
    await rm(file, { force: true })
    await writeFile(file, bytes, { mode: executable ? 0o755 : 0o644, flag: 'wx' })
  }
  const now = await call<Skill>('GET', `/api/skills/${encodeURIComponent(name)}`)
  if (now.digest !== digest) throw new CliError(`'${name}' changed while it was pulled; pull again`)
  const there = await readdir(join(dir, name), { recursive: true, withFileTypes: true })
  return there
    .filter((entry) => !entry.isDirectory())
    .map((entry) => relative(dir, join(entry.parentPath, entry.name)).split(sep).join('/'))
    .filter((path) => !files.some((file) => path === `${name}/${file.path}`))
    .toSorted()
}

/** The folder itself when it is a skill, else those in it. */
async function foldersIn(dir: string): Promise<string[]> {
  const folder = resolve(dir)
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => {
    throw new CliError(`${dir} is not a readable folder`, 2)
  })
  if (entries.some(({ name }) => name.toLowerCase() === 'skill.md')) return [folder]
  const inside: string[] = []
  for (const entry of entries) {
    const one = join(folder, entry.name)
    if (entry.isDirectory() && (await stat(join(one, 'SKILL.md')).catch(() => undefined))) inside.push(one)
  }
  if (inside.length === 0) throw new CliError(`there is no SKILL.md in ${dir}, nor in a folder in it`, 2)
  return inside.toSorted()
}

async function read(folder: string, name: string) {
  return filesOf(folder, name).catch((error: unknown) => {
    throw isAppError(error) ? new CliError(error.message) : error
  })
}

const readLocal = async (folder: string): Promise<Reading> => readFolder(await read(folder, basename(folder)))

function report({ name, problems, forgiven, valid }: DryRun & { readonly valid: boolean }, terminal: Terminal): void {
  terminal.print({ name, valid, problems, forgiven }, () =>
    [
      `${name}: ${valid ? 'valid' : 'not valid'}`,
      ...problems.map((problem) => `  problem: ${problem}`),
      ...forgiven.map((one) => `  forgiven: ${one}`),
    ].join('\n'),
  )
}

/** Resolves to the answer's JSON, or to its bytes when it is something else. */
type Call = <T>(method: string, path: string, body?: FormData) => Promise<T>

async function callerOf({ url, key, data }: Options): Promise<Call> {
  const dev = url !== undefined && key !== undefined ? undefined : await devData(data).lastReady()
  const base = url ?? dev?.conductorUrl
  const bearer = key ?? dev?.apiKey
  if (base === undefined || bearer === undefined)
    throw new CliError('give --url and --key, or start agent-orc dev first', 2)
  if (!/^https?:$/.test(URL.parse(base)?.protocol ?? ''))
    throw new CliError(`--url ${base} is not the URL of a conductor`, 2)
  return async <T>(method: string, path: string, body?: FormData): Promise<T> => {
    const reply = await fetch(`${base.replace(/\/+$/, '')}${path}`, {
      method,
      headers: { authorization: `Bearer ${bearer}` },
      ...(body ? { body } : {}),
    }).catch((error: Error) => {
      throw new CliError(`nothing answers at ${new URL(base).origin} (${error.message}); is it running?`)
    })
    const json = reply.headers.get('content-type')?.includes('json') ?? false
    if (reply.ok) return (json ? await reply.json() : Buffer.from(await reply.arrayBuffer())) as T
    const problem = (json ? await reply.json() : {}) as { error?: string; message?: string }
    throw new CliError(`the conductor answers ${reply.status} ${problem.message ?? problem.error ?? reply.statusText}`)
  }
}
