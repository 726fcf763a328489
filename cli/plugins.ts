import { basename, dirname, join, relative, resolve } from 'node:path'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { Argument, type Command } from 'commander'
import { boot, type Entry, plan } from '#kernel'
import { environment, loadRole, root } from '../kernel/config.ts'
import { sampleEnvironment } from './check-config.ts'
import { CliError, columns, terminalOf } from './terminal.ts'
import manifest from '../package.json' with { type: 'json' }

export function addPlugins(program: Command): void {
  program
    .command('plugins')
    .description('show the plugins of a role in start order, with what each needs and gives')
    .argument('[file]', 'role file', join(root, 'config/dev.yaml'))
    .option('--boot', 'also boot the role without opening ports, and show how long each plugin took')
    .option('--json', 'answer as JSON')
    .action(async (file: string, options: { boot?: boolean }, command: Command) => {
      // The graph does not depend on the values, so gaps of the environment are filled with the sample ones.
      const env = options.boot ? environment() : { ...(await sampleEnvironment()), ...environment() }
      const role = await loadRole(file, { env })
      const order = plan(role)
      const took = new Map<string, number>()
      if (options.boot) {
        let current: { step: string; since: number } | undefined
        const onStep = (step: string): void => {
          const now = performance.now()
          if (current) took.set(current.step, now - current.since)
          current = { step, since: now }
        }
        const running = await boot(role, { listen: false, onStep })
        await running.stop()
      }
      const rows = order.map((entry) => describe(entry, took.get(entry.name)))
      terminalOf(command).print(rows, () =>
        columns([
          ['entry', 'plugin', 'ms', 'provides', 'requires'],
          ...rows.map((r) => [
            r.entry,
            r.plugin,
            r.bootMs === undefined ? '' : String(r.bootMs),
            r.provides.join(' ') || '-',
            r.requires.join(' ') || '-',
          ]),
        ]),
      )
    })
}

function describe({ name, plugin }: Entry, bootMs: number | undefined) {
  // `?` marks a capability that may be absent, `[]` a slot.
  const marks = { one: '', maybe: '?', many: '[]' }
  const ids = (refs: Entry['plugin']['requires']): string[] => Object.values(refs).map((c) => c.id + marks[c.mode])
  return {
    entry: name,
    plugin: plugin.name,
    provides: ids(plugin.provides),
    requires: ids(plugin.requires),
    ...(bootMs === undefined ? {} : { bootMs: Math.round(bootMs * 10) / 10 }),
  }
}

/** The form of a name for a package and a plugin. Tables are named after it, and PostgreSQL keeps 63 bytes of a name. */
const nameForm = /^[a-z][a-z0-9]*(-[a-z0-9]+)*$/

export function addPlugin(program: Command): void {
  const plugin = program.command('plugin').description('write plugins of your own')
  plugin
    .command('test')
    .description('run the tests of the package in this folder, with the Node that Agent Orc runs on')
    .allowUnknownOption()
    .argument('[args...]', 'for node --test')
    .action(async (args: string[]) => {
      // What this command has compiled already need not be compiled by each of the tests.
      const env = { NODE_COMPILE_CACHE: join(root, 'node_modules/.cache/agent-orc'), ...environment() }
      const child = spawn(process.execPath, ['--test', ...args], { stdio: 'inherit', env })
      const [code] = (await once(child, 'exit')) as [number | null]
      if (code !== 0) throw new CliError('the tests failed')
    })
  plugin
    .command('new')
    .description('write a package with one plugin and a test that is green at once')
    .addArgument(new Argument('<kind>', 'what it adds').choices(Object.keys(kinds)))
    .argument('<name>', 'its name, e.g. my-runtime; also the folder')
    .option('--dir <folder>', 'write it there instead')
    .option('--json', 'answer as JSON')
    .action(async (kind: Kind, name: string, options: { dir?: string }, command: Command) => {
      if (!nameForm.test(name) || name.length > 40) {
        throw new CliError(
          `'${name}' is no name for a package: use lower-case words with hyphens, 40 letters at most`,
          2,
        )
      }
      const folder = resolve(options.dir ?? name)
      const files = await createPackage(kind, name, folder)
      const there = relative('.', folder) || '.'
      terminalOf(command).print({ folder, files }, () =>
        [
          `${basename(folder)} is written: ${files.length} files.`,
          `  cd ${there} && npm test            its tests are green`,
          `  npm run dev                        Agent Orc with your plugin in it`,
          `  README.md says what to change first.`,
        ].join('\n'),
      )
    })
}

/** An example of each kind: a new package begins as a copy of it, under another name than the one it is `called`. */
export const kinds = {
  runtime: { example: 'echo-runtime', called: 'echo' },
  'sandbox-provider': { example: 'plain-sandbox', called: 'plain' },
  'model-provider': { example: 'echo-model', called: 'echo' },
  tool: { example: 'greeting-tool', called: 'greeting' },
  capability: { example: 'notes', called: 'notes' },
} as const
type Kind = keyof typeof kinds

/** Writes the package and returns its files. Refuses a folder that has something in it. */
async function createPackage(kind: Kind, name: string, folder: string): Promise<string[]> {
  await mkdir(folder, { recursive: true })
  if ((await readdir(folder)).length > 0) throw new CliError(`${folder} is not empty`)
  const { example, called } = kinds[kind]
  const from = join(root, 'examples', example)
  const copied: Record<string, string> = {}
  for (const path of await readdir(from, { recursive: true })) {
    if (path.startsWith('test') || !/\.(ts|sql)$/.test(path)) continue
    copied[path.replace(called, tableOf(name))] = renamed(await readFile(join(from, path), 'utf8'), called, name)
  }
  const test = await readFile(join(from, `test/${called}.test.ts`), 'utf8')
  const files: Record<string, string> = {
    'package.json': `${JSON.stringify(packageOf(kind, name), undefined, 2)}\n`,
    'tsconfig.json': `${JSON.stringify(tsconfig, undefined, 2)}\n`,
    '.gitignore': 'node_modules/\ndist/\n.agent-orc/\n',
    'README.md': readmeOf(kind, name),
    ...copied,
    'test/index.test.ts': renamed(test, called, name),
  }
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(folder, path)), { recursive: true })
    await writeFile(join(folder, path), text)
  }
  // The package is tried with the server that wrote it, before anything is installed and without a network.
  await mkdir(join(folder, 'node_modules'))
  await symlink(root, join(folder, 'node_modules/agent-orc'), 'dir')
  return Object.keys(files)
}

/** The tables of a plugin are named after it. */
const tableOf = (name: string): string => name.replaceAll('-', '_')

const renamed = (source: string, called: string, name: string): string =>
  source
    .replaceAll(`from: '${called}'`, `from: '${tableOf(name)}'`)
    .replaceAll(`name: '${called}'`, `name: '${name}'`)
    .replaceAll(`'${called}'`, `'${name}'`)
    .replaceAll(`${called}/`, `${name}/`)
    .replaceAll(`/api/${called}`, `/api/${name}`)
    .replaceAll(`\`runtime: ${called}\``, `\`runtime: ${name}\``)
    .replaceAll(`provider: ${called}`, `provider: ${name}`)
    .replaceAll(new RegExp(`\\b(FROM|INTO|UPDATE|TABLE|ON) ${called}\\b`, 'g'), `$1 ${tableOf(name)}`)

const cli = 'node node_modules/agent-orc/cli/agent-orc.js'

// The compiler leaves SQL behind, and what is built looks for its migrations beside itself.
const copyMigrations = `node -e "fs.cpSync('migrations', 'dist/migrations', { recursive: true })"`

const packageOf = (kind: Kind, name: string) => ({
  name,
  version: '0.1.0',
  type: 'module',
  // Node strips types of your own project, not under node_modules: what is published is built.
  exports: './dist/index.js',
  files: ['dist'],
  scripts: {
    test: `${cli} plugin test`,
    dev: `${cli} dev --with .`,
    build: kind === 'capability' ? `tsc -p tsconfig.json && ${copyMigrations}` : 'tsc -p tsconfig.json',
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

/** How a profile or the operator uses a plugin of each kind. */
const uses = {
  runtime: (name) => `A profile uses it with \`runtime: ${name}\`.`,
  'sandbox-provider': (name) => `A profile uses it with \`workerMode: sandbox\` and \`sandbox: {provider: ${name}}\`.`,
  'model-provider': (name) => `A profile uses it with \`model: ${name}/<model>\`.`,
  tool: () => 'A profile uses its tools by their names, in `tools`.',
  capability: (name) => `It adds \`/api/${name}\` to the conductor, and a table of its own to the database.`,
} satisfies Readonly<Record<Kind, (name: string) => string>>

/** What the tests of the package check, and what to change in them. */
const suite = {
  of: 'the contract that the bundled ones pass too',
  change: 'give its script the prompts or calls that fit what yours does',
}
const ownTests = {
  of: 'on a PostgreSQL of its own, in a whole conductor',
  change: 'keep that tenants do not meet, that bad input is 400 and that an unknown id is 404',
}

function readmeOf(kind: Kind, name: string): string {
  const tests = kind === 'capability' ? ownTests : suite
  return `# ${name}

A ${kind.replace('-', ' ')} for Agent Orc. ${uses[kind](name)}

\`\`\`
npm test         # ${tests.of}
npm run dev      # Agent Orc on this machine, with this plugin in it
\`\`\`

Begin in \`index.ts\`: it works as it is, and does something simple. \`test/index.test.ts\` says what must stay true; ${tests.change}.
The guide is docs/plugins.md of Agent Orc.

\`node_modules/agent-orc\` is a link to the installation that wrote this package. Elsewhere, \`npm install <path or version of agent-orc>\`.
To use it in a role file, add under \`plugins\`:

\`\`\`yaml
${name}: { use: /path/to/${name} }
\`\`\`

To publish it, \`npm install -D typescript\` and \`npm publish\`: Node does not strip types under node_modules, so \`prepack\` builds \`dist/\`.
`
}
