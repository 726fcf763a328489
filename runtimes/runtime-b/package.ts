import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { notInstalled, otherVersion } from './errors.ts'

/** Which tools exist and how each is switched off differs between lines: another one has to be read first. */
const line = '0.163.'

interface Manifest {
  readonly version: string
}

/**
 * The program inside the installed package, or an AppError that says what to install. The package's own entry point is a Node
 * script around it, which would be a second process of 40 MB for each run.
 */
export async function findCodex(from = new URL('vendor/package.json', import.meta.url)): Promise<string> {
  const { root, version } = await locate(from)
  if (!version.startsWith(line)) {
    throw otherVersion({
      message: `runtime_b works with @openai/codex ${line}x, and ${version} is installed: run \`npm run runtimes:install\`.`,
    })
  }
  const target = targets[`${process.platform}-${process.arch}`]
  try {
    const platform = createRequire(root).resolve(`@openai/codex-${process.platform}-${process.arch}/package.json`)
    const folder = join(dirname(platform), 'vendor', target!)
    const { entrypoint } = JSON.parse(await readFile(join(folder, 'codex-package.json'), 'utf8')) as {
      entrypoint: string
    }
    return join(folder, entrypoint)
  } catch (cause) {
    throw notInstalled({ cause })
  }
}

async function locate(from: URL): Promise<{ root: string; version: string }> {
  try {
    const root = createRequire(from).resolve('@openai/codex/package.json')
    const { version } = JSON.parse(await readFile(root, 'utf8')) as Manifest
    return { root, version }
  } catch (cause) {
    throw notInstalled({ cause })
  }
}

const targets: Readonly<Record<string, string>> = {
  'linux-x64': 'x86_64-unknown-linux-musl',
  'linux-arm64': 'aarch64-unknown-linux-musl',
  'darwin-x64': 'x86_64-apple-darwin',
  'darwin-arm64': 'aarch64-apple-darwin',
}
