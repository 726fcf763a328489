import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { runtimeBErrors } from './errors.ts'
import { createRpcClient, type RpcClient } from './json-rpc.ts'

const name = '@openai/codex'
/** The supported version. Other versions have other tools and other switches for them, so their code must be reviewed first. */
const line = '0.163'
const how = `run \`npm run runtimes:install runtime_b\`, or \`npm install ${name}@${line}\` where agent-orc is installed from npm.`

/** The program inside the vendor's package, which is not part of the default install. */
interface Program {
  /** A sentence that says why the program cannot be used. It is looked up again until the program is found, so that installing it needs no restart. */
  readonly missing: string | undefined
  /** Throws AppError `runtime_not_installed`. */
  path(): string
}

export function codexProgram(from = new URL('vendor/package.json', import.meta.url)): Program {
  let found: string | undefined
  const path = (): string => (found ??= find(from))
  return {
    get missing() {
      try {
        path()
        return undefined
      } catch (error) {
        return (error as Error).message
      }
    },
    path,
  }
}

/** Finds the program itself. The package's entry point is a Node script around it, which would be a second process of 40 MB for each run. */
function find(from: URL): string {
  // Resolving from here also finds a package that was installed next to agent-orc.
  const manifest = resolve(from, `${name}/package.json`)
  const { version } = JSON.parse(readFileSync(manifest, 'utf8')) as { version: string }
  if (!version.startsWith(`${line}.`)) {
    throw runtimeBErrors.runtimeNotInstalled({
      message: `runtime_b works with ${name} ${line}, and ${version} is installed: ${how}`,
    })
  }
  const platform = `${process.platform}-${process.arch}`
  const target = targets[platform]
  if (target === undefined)
    throw runtimeBErrors.runtimeNotInstalled({ message: `runtime_b does not run on ${platform}.` })
  return join(dirname(resolve(manifest, `${name}-${platform}/package.json`)), 'vendor', target, 'bin', 'codex')
}

const targets: Readonly<Record<string, string>> = {
  'linux-x64': 'x86_64-unknown-linux-musl',
  'linux-arm64': 'aarch64-unknown-linux-musl',
  'darwin-x64': 'x86_64-apple-darwin',
  'darwin-arm64': 'aarch64-apple-darwin',
}

function resolve(from: URL | string, path: string): string {
  try {
    return createRequire(from).resolve(path)
  } catch (cause) {
    throw runtimeBErrors.runtimeNotInstalled({ cause, message: `runtime_b needs the package ${name}: ${how}` })
  }
}

export interface AppServer {
  readonly rpc: RpcClient
  /** How the process ended, for the log. Undefined while it runs. */
  readonly ending: string | undefined
  /** The end of its standard error, for a log level that is off in production, because the text may quote anything. */
  readonly lastWords: string
  /** Ends the process, by force when it takes longer than a second. Resolves when nothing of it runs any more. */
  stop(): Promise<void>
}

export interface Launch {
  /** The program, and the arguments that come before its own. */
  readonly command: readonly [string, ...string[]]
  readonly args: readonly string[]
  /** The complete environment. */
  readonly env: Readonly<Record<string, string>>
  readonly folder: string
}

/** Milliseconds. The process ends some 20 ms after its input does, and a stopped run has two seconds in all. */
const stopMs = 1_000
const keptWords = 4_096

export function startAppServer({ command, args, env, folder }: Launch): AppServer {
  const [program, ...before] = command
  const child = spawn(program, [...before, 'app-server', ...args], {
    cwd: folder,
    env,
    stdio: ['pipe', 'pipe', 'pipe'],
    // A separate process group, so that what the process starts ends with it. If we die first, the process ends by itself when its input closes.
    detached: true,
  })
  let ending: string | undefined
  let lastWords = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (lastWords = (lastWords + text).slice(-keptWords)))
  const gone = new Promise<void>((resolve) => {
    child.once('error', (error: NodeJS.ErrnoException) => {
      ending ??= `not started: ${error.code ?? error.name}`
      resolve()
    })
    child.once('exit', (code, signal) => {
      ending ??= signal ?? `exit code ${code}`
      killGroup(child)
      resolve()
    })
  })
  const rpc = createRpcClient(child.stdin, child.stdout)
  return {
    rpc,
    get ending() {
      return ending
    },
    get lastWords() {
      return lastWords
    },
    async stop() {
      if (ending !== undefined) return
      child.stdin.end()
      const force = setTimeout(() => killGroup(child), stopMs)
      await gone
      clearTimeout(force)
    },
  }
}

function killGroup({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL')
  } catch {
    // The whole group has ended.
  }
}
