import { after, suite, test } from 'node:test'
import { relative } from 'node:path'
import { pathToFileURL } from 'node:url'

/** The longest delay of a timer, because only single tests have a time limit. `Infinity` would mean the limit of a test. */
const longest = 2 ** 31 - 1

/**
 * Runs several test files in this process, so that starting, compiling shared modules and connecting happen only once. Each file is a suite with
 * its name, is loaded when the previous one has ended, and has its own hooks. A file that cannot be loaded fails, and the others still run.
 * Anything that a file leaves open keeps the process alive, as it would alone.
 */
export async function runTogether(files: readonly string[]): Promise<void> {
  let last = false
  process.on('exit', () => {
    // Until the last file has run the exit code is 1, because a test that exits with 0 would otherwise hide the files after it.
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
