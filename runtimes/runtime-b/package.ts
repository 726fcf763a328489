import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { runtimeBErrors } from './errors.ts'

const name = '@openai/codex'
/** The supported version. Other versions have other tools, and switches for them, which have to be read first. */
const line = '0.163'
const how = `run \`npm run runtimes:install runtime_b\`, or \`npm install ${name}@${line}\` where agent-orc is installed from npm.`

/** The program inside the vendor's package, which is not part of the default install. */
export interface Program {
  /** Why it cannot be used, as a sentence; looked up again until it is there, so that installing it needs no restart. */
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
  // Resolved from here Node also finds a package that was installed beside agent-orc.
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
