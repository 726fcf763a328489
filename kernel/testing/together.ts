import { after, suite, test } from 'node:test'
import { relative } from 'node:path'
import { pathToFileURL } from 'node:url'

/** The longest timer there is, because only single tests are bounded in time. `Infinity` would mean the bound of a test. */
const longest = 2 ** 31 - 1

/**
 * Runs several test files in this process, which then starts, compiles the modules they share and connects to what they
 * share only once. Each is a suite with its name, is loaded when the one before it has ended, and has its own hooks. One
 * that cannot be loaded fails and does not keep the others from running. What a file leaves open keeps the process alive,
 * as it would alone.
 */
export async function runTogether(files: readonly string[]): Promise<void> {
  let last = false
  process.on('exit', () => {
    // Until the last file has run the exit code is 1: a test that exits with 0 would otherwise hide those after it.
    if (!last) process.exitCode ||= 1
  })
  for (const file of files) {
    const over = Promise.withResolvers<void>()
    void suite(relative('', file), { timeout: longest }, async () => {
      after(() => over.resolve())
      try {
        await import(pathToFileURL(file).href)
      } catch (error) {
        test('it can be loaded', () => {
          throw error
        })
      }
    })
    await over.promise
  }
  last = true
}
