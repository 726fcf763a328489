import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { parseEnv } from 'node:util'
import type { Command } from 'commander'
import { BootError, plan, risksOf } from '#kernel'
import { environment, type Environment, loadRole, root } from '../kernel/config.ts'
import { CliError, terminalOf } from './terminal.ts'

const shippedRoles = ['conductor', 'gateway', 'runner', 'sidecar', 'vfs', 'worker', 'dev', 'memory'].map(
  (name) => `config/${name}.yaml`,
)

/** The environment that the shipped role files are checked with. */
export const sampleEnvironment = async (): Promise<Environment> =>
  parseEnv(await readFile(join(root, 'config/check.env'), 'utf8'))

export function addCheckConfig(program: Command): void {
  program
    .command('check-config')
    .description('load and plan role files without opening anything')
    .argument('[file...]', 'role files, checked with this environment; none: those shipped, with config/check.env')
    .option('--env <file>', 'check with the variables of this file instead of the environment')
    .option('--strict', 'also fail for risks, not only for mistakes: for production files')
    .option('--json', 'one JSON line per file')
    .action(async (given: string[], options: { env?: string; strict?: boolean }, command: Command) => {
      const terminal = terminalOf(command)
      const shipped = given.length === 0
      const env = options.env
        ? parseEnv(await readable(options.env))
        : shipped
          ? await sampleEnvironment()
          : environment()
      let failed = 0
      for (const file of shipped ? shippedRoles.map((name) => join(root, name)) : given) {
        const problems = await problemsOf(file, env, options.strict === true)
        if (problems.length > 0) failed++
        terminal.print({ file, ok: problems.length === 0, problems }, () =>
          problems.length === 0 ? `ok  ${file}` : `BAD ${file}\n${problems.map((p) => `  - ${p}`).join('\n')}`,
        )
      }
      if (failed > 0)
        throw new CliError(
          `${failed} role file${failed > 1 ? 's' : ''} ${options.strict ? 'cannot boot, or should not' : 'cannot boot'}`,
        )
    })
}

async function problemsOf(file: string, env: Environment, strict: boolean): Promise<readonly string[]> {
  try {
    const role = await loadRole(file, { env })
    plan(role)
    return strict ? risksOf(role) : []
  } catch (error) {
    if (error instanceof BootError) return error.problems
    throw error
  }
}

const readable = (file: string): Promise<string> =>
  readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw new CliError(`${file} cannot be read: ${error.code}`)
  })
