import { mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { root } from '../../kernel/config.ts'
import { CliError } from '../terminal.ts'
import manifest from '../../package.json' with { type: 'json' }
import { type Kind, readmeOf } from './readme.ts'

/** An example of each kind: a new package begins as a copy of it, under another name. */
export const kinds = {
  runtime: { example: 'echo-runtime', test: 'echo', called: 'echo' },
  'sandbox-provider': { example: 'plain-sandbox', test: 'plain', called: 'plain' },
  'model-provider': { example: 'echo-model', test: 'echo', called: 'echo' },
  tool: { example: 'greeting-tool', test: 'greeting', called: 'greeting' },
} as const

/** Writes the package and returns its files. Refuses a folder that has something in it. */
export async function createPackage(kind: Kind, name: string, folder: string): Promise<string[]> {
  await mkdir(folder, { recursive: true })
  if ((await readdir(folder)).length > 0) throw new CliError(`${folder} is not empty`)
  const { example, test, called } = kinds[kind]
  const rename = (source: string): string =>
    source
      .replaceAll(`name: '${called}'`, `name: '${name}'`)
      .replaceAll(`'${called}'`, `'${name}'`)
      .replaceAll(`${called}/`, `${name}/`)
      .replaceAll(`\`runtime: ${called}\``, `\`runtime: ${name}\``)
      .replaceAll(`provider: ${called}`, `provider: ${name}`)
  const source = (path: string): Promise<string> => readFile(join(root, 'examples', example, path), 'utf8')
  const files: Record<string, string> = {
    'package.json': `${JSON.stringify(packageOf(name), undefined, 2)}\n`,
    'tsconfig.json': `${JSON.stringify(tsconfig, undefined, 2)}\n`,
    '.gitignore': 'node_modules/\ndist/\n.agent-orc/\n',
    'README.md': readmeOf(kind, name),
    'index.ts': rename(await source('index.ts')),
    'test/index.test.ts': rename(await source(`test/${test}.test.ts`)),
  }
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(folder, path)), { recursive: true })
    await writeFile(join(folder, path), text)
  }
  // The server that wrote the package is the one it is tried with, before anything is installed and without a network.
  await mkdir(join(folder, 'node_modules'))
  await symlink(root, join(folder, 'node_modules/agent-orc'), 'dir')
  return Object.keys(files)
}

const cli = 'node node_modules/agent-orc/cli/agent-orc.js'

const packageOf = (name: string) => ({
  name,
  version: '0.1.0',
  type: 'module',
  // Node strips types of your own project, not under node_modules: what is published is built.
  exports: './dist/index.js',
  files: ['dist'],
  scripts: {
    test: `${cli} plugin test`,
    dev: `${cli} dev --with .`,
    build: 'tsc -p tsconfig.json',
    prepack: 'npm run build',
  },
  peerDependencies: { 'agent-orc': `^${manifest.version}` },
})

const tsconfig = {
  compilerOptions: {
    target: 'es2024',
    module: 'nodenext',
    strict: true,
    erasableSyntaxOnly: true,
    rewriteRelativeImportExtensions: true,
    skipLibCheck: true,
    outDir: 'dist',
  },
  include: ['index.ts'],
}
