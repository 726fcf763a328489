import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { basename, relative, resolve } from 'node:path'
import { type Command, Argument } from 'commander'
import { createPackage, type Kind, kinds } from './scaffold.ts'
import { CliError, terminalOf } from './terminal.ts'

/** What a package and a plugin may be called: tables are named after it, and PostgreSQL keeps 63 bytes of a name. */
const nameForm = /^[a-z][a-z0-9]*(-[a-z0-9]+)*$/

export function addPlugin(program: Command): void {
  const plugin = program.command('plugin').description('write plugins of your own')
  plugin
    .command('test')
    .description('run the tests of the package in this folder, with the Node that Agent Orc runs on')
    .allowUnknownOption()
    .argument('[args...]', 'for node --test')
    .action(async (args: string[]) => {
      const [code] = (await once(spawn(process.execPath, ['--test', ...args], { stdio: 'inherit' }), 'exit')) as [
        number | null,
      ]
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
