import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { VendorSdk } from './sdk.ts'

const name = '@anthropic-ai/claude-agent-sdk'
/** The supported version. In another version the options that switch host tools off may differ, so its code must be reviewed first. */
const line = '0.3'
const how = `run \`npm run runtimes:install runtime_a\`, or \`npm install ${name}@${line}\` where agent-orc is installed from npm.`

/** The vendor's package, which is not part of the default install. */
export interface Vendor {
  /** A sentence that says why the package cannot be used. It is looked up again until the package is found, so that installing it needs no restart. */
  readonly missing: string | undefined
  load(): Promise<VendorSdk>
}

export function vendorPackage(from = new URL('vendor/package.json', import.meta.url)): Vendor {
  let found: string | undefined
  const find = (): string | undefined => {
    try {
      // Resolving from here also finds a package that was installed next to agent-orc.
      return createRequire(from).resolve(name)
    } catch {
      return undefined
    }
  }
  const missing = (): string | undefined => {
    if (found !== undefined) return undefined
    const entry = find()
    if (entry === undefined) return `runtime_a needs the package ${name}: ${how}`
    const version = versionOf(entry)
    if (!version.startsWith(`${line}.`)) {
      return `runtime_a works with ${name} ${line}, and ${version} is installed: ${how}`
    }
    found = entry
    return undefined
  }
  return {
    get missing() {
      return missing()
    },
    load: async () => (await import(pathToFileURL(found!).href)) as VendorSdk,
  }
}

const versionOf = (entry: string): string =>
  (JSON.parse(readFileSync(join(dirname(entry), 'package.json'), 'utf8')) as { version: string }).version
