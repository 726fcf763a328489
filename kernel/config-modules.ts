import { existsSync, statSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, isAbsolute, join, resolve } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { Kind, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import type { Plugin } from './plugin.ts'

/** The folder that holds `plugins/`, `runtimes/` and `providers/`. */
export const root = fileURLToPath(new URL('..', import.meta.url))

// A structural check instead of a class, because a third party's copy of definePlugin makes plugins too.
const PluginShape = Type.Object({
  api: Type.Unknown(),
  name: Type.String(),
  config: Type.Object({}),
  setup: Type.Function([], Type.Unknown()),
})

/**
 * Finds and imports the plugin that a role file names. `use` is `plugins/x`, `runtimes/x` or `providers/x` of this
 * repository, a path (absolute, or relative to the role file), or a package. Throws an Error whose message is a sentence.
 */
export async function loadPlugin(use: string, roleFile: string): Promise<Plugin> {
  const url = urlOf(use, roleFile)
  const module = await importModule(url).catch((cause: unknown) => {
    throw new Error(`'${use}' fails to load: ${cause instanceof Error ? cause.message : String(cause)}`, { cause })
  })
  const plugin = module.default
  if (!Value.Check(PluginShape, plugin))
    throw new Error(`'${use}' is not a plugin: its default export must come from definePlugin()`)
  if (!(Kind in plugin.config)) throw new Error(`'${use}' declares settings that are not a TypeBox schema`)
  return plugin as unknown as Plugin
}

async function importModule(url: string): Promise<{ readonly default?: unknown }> {
  try {
    return await import(url)
  } catch (error) {
    if ((error as { code?: unknown }).code !== 'ERR_UNSUPPORTED_NODE_MODULES_TYPE_STRIPPING') throw error
    // Node strips types only from our own files, so a package that ships TypeScript is loaded with tsx, if that is installed.
    const { tsImport } = await import('tsx/esm/api').catch(() => {
      throw new Error('it ships TypeScript, which Node does not run from node_modules: npm install tsx, or build it')
    })
    return await tsImport(url, import.meta.url)
  }
}

function urlOf(use: string, roleFile: string): string {
  const ours = /^(plugins|runtimes|providers)\/[^/]/.test(use)
  if (!ours && !isAbsolute(use) && !/^\.\.?\//.test(use)) return packageUrl(use, roleFile)
  const path = ours ? join(root, use) : resolve(dirname(roleFile), use)
  const files = ['', '.ts', '.js', '/index.ts', '/index.js'].map((end) => path + end)
  const file = files.find((one) => existsSync(one) && statSync(one).isFile())
  if (file === undefined) throw new Error(`'${use}' is not there: looked for ${path} as a file and for its index.ts`)
  return pathToFileURL(file).href
}

function packageUrl(name: string, roleFile: string): string {
  // A package that exports only to `import` is invisible to require.resolve, so the second way looks next to Agent Orc itself.
  const ways = [() => pathToFileURL(createRequire(roleFile).resolve(name)).href, () => import.meta.resolve(name)]
  for (const way of ways) {
    try {
      return way()
    } catch {}
  }
  throw new Error(`'${name}' is not an installed package: npm install it, or write ./${name} for a file`)
}
