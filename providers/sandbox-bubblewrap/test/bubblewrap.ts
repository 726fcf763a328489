import { chmod, mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import type { SandboxProvider } from '#contracts/sandbox'
import { openHome, treeOf } from '#local-sandboxes'
import { type Launches, openLaunches, processesWith, sandboxProviderOf, type Started } from '#testing'
import plugin from '../index.ts'
import { prepareMachine } from '../machine.ts'

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

const folders = join(tmpdir(), `ao-bubblewrap-${process.pid}`)

export async function folderFor(t: Pick<TestContext, 'after'>): Promise<string> {
  const dir = await mkdtemp(`${folders}-`)
  // Sandboxes of root are other users.
  await chmod(dir, 0o711)
  t.after(() => rm(dir, { recursive: true, force: true }))
  return dir
}

/** In the environment of every worker of these tests. */
export const marker = { SUITE_MARKER: `marker-${process.pid}` }

/** Processes that this one started, orphans among them, and folders of sessions. */
export async function remains(): Promise<string[]> {
  const children = treeOf(process.pid).slice(1).map(String)
  const names = (await readdir(tmpdir())).filter((name) => join(tmpdir(), name).startsWith(folders))
  const inside = await Promise.all(
    names.map((name) => readdir(join(tmpdir(), name), { recursive: true }).catch(() => [] as string[])),
  )
  const sessions = inside.flat().filter((path) => /\/[0-9a-f]{32}(\/|$)/.test(path))
  return [...children, ...processesWith(marker.SUITE_MARKER), ...sessions]
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
