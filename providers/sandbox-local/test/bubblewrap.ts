import type { TestContext } from 'node:test'
import type { SandboxProvider } from '#contracts/sandbox'
import { type Launches, openLaunches, sandboxProviderOf, type Started } from '#testing'
import plugin from '../bubblewrap/index.ts'
import { prepareMachine } from '../bubblewrap/index.ts'
import { openHome } from '../home.ts'
import { folderFor, marker } from './remains.ts'

/**
 * The provider as a role has it, with a folder of the test's own. Where bubblewrap is missing or does not work the test is
 * skipped with the reason, and undefined is returned; with CI=true that is a failure instead.
 */
export async function bubblewrapForTests(
  t: Pick<TestContext, 'after' | 'skip'>,
  config: object = {},
): Promise<SandboxProvider | undefined> {
  const dir = await folderFor(t)
  const entry = { name: 'sandbox-bubblewrap', plugin, config: { dir, ...config } }
  const provider = await sandboxProviderOf(t, 'bubblewrap', [entry])
  if (provider) return provider
  const home = await openHome({ dir, passable: true })
  t.after(() => home.close())
  const reason = await prepareMachine(home, { cgroup: undefined, read: [] }).then(
    String,
    (error: Error) => error.message,
  )
  if (process.env['CI'] === 'true') throw new Error(reason)
  t.skip(reason)
  return undefined
}

/** How a program inside ended. */
export interface Ran {
  readonly code: number | string
  readonly stdout: string
  readonly stderr: string
}

export interface Inside {
  readonly launches: Launches
  readonly started: Started
  run(...command: string[]): Promise<Ran>
  sh(script: string): Promise<Ran>
  perl(script: string): Promise<Ran>
  /** A script as an ES module; what it logs is parsed. */
  node(script: string): Promise<unknown>
}

/** A sandbox to break out of. */
export async function openInside(
  t: Pick<TestContext, 'after' | 'skip'>,
  fields: Parameters<Launches['start']>[0] = {},
): Promise<Inside | undefined> {
  const provider = await bubblewrapForTests(t)
  if (!provider) return undefined
  const launches = await openLaunches(t, provider, { env: marker })
  return insideOf(launches, await launches.start(fields))
}

export function insideOf(launches: Launches, started: Started): Inside {
  const run = (...command: string[]): Promise<Ran> => started.session.call('run', { command }) as Promise<Ran>
  return {
    launches,
    started,
    run,
    sh: (script) => run('/bin/sh', '-c', script),
    perl: (script) => run('/usr/bin/perl', '-e', script),
    async node(script) {
      const { stdout, stderr } = await run(process.execPath, '--input-type=module', '--eval', script)
      try {
        return JSON.parse(stdout) as unknown
      } catch {
        throw new Error(`the script printed no JSON: ${stdout} ${stderr}`)
      }
    },
  }
}
