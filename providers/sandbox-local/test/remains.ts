import { chmod, mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { processesWith } from '#testing'
import { treeOf } from '../processes.ts'

/** In the environment of every worker of a test file. */
export const marker = { SUITE_MARKER: `marker-${process.pid}` }
const folders = join(tmpdir(), `ao-local-${process.pid}`)

/** A folder for the sandboxes of a test. */
export async function folderFor(t: Pick<TestContext, 'after'>): Promise<string> {
  const dir = await mkdtemp(`${folders}-`)
  // Sandboxes of root are other users.
  await chmod(dir, 0o711)
  t.after(() => rm(dir, { recursive: true, force: true }))
  return dir
}

/** Processes that this one started, guards and orphans among them, and folders of sessions. */
export async function remains(): Promise<string[]> {
  const names = (await readdir(tmpdir())).map((name) => join(tmpdir(), name)).filter((path) => path.startsWith(folders))
  const inside = await Promise.all(names.map((path) => readdir(path, { recursive: true }).catch(() => [] as string[])))
  const sessions = inside.flat().filter((path) => /\/[0-9a-f]{32}(\/|$)/.test(path))
  const children = (await treeOf(process.pid)).slice(1)
  return [...children.map(String), ...processesWith(marker.SUITE_MARKER), ...sessions]
}
