import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import type { VendorSdk } from './sdk.ts'

const name = '@anthropic-ai/claude-agent-sdk'

/** The vendor's package, which is not part of the default install. */
export interface Vendor {
  /** Why it cannot be used, as a sentence; looked up again each time, so that installing it needs no restart. */
  readonly missing: string | undefined
  load(): Promise<VendorSdk>
}

export function vendorPackage(): Vendor {
  // From here Node also finds a package that somebody installed beside agent-orc.
  const { resolve } = createRequire(new URL('./vendor/package.json', import.meta.url))
  const find = (): string | undefined => {
    try {
      return resolve(name)
    } catch {
      return undefined
    }
  }
  return {
    get missing() {
      return find() === undefined ? sentence : undefined
    },
    load: async () => (await import(pathToFileURL(find() ?? name).href)) as VendorSdk,
  }
}

const sentence = `runtime_a needs the package ${name}: run \`npm run runtimes:install runtime_a\`, or \`npm install ${name}@0.3\` where agent-orc is installed from npm.`
