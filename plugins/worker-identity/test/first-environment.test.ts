import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { test } from 'node:test'

const module = JSON.stringify(import.meta.resolve('../first-environment.ts'))
const script = `
import { readFileSync } from 'node:fs'
import { blankFirstEnvironment } from ${module}
const done = await blankFirstEnvironment('SECRET')
console.log(JSON.stringify({ done, shown: readFileSync('/proc/self/environ', 'latin1').split('\\0') }))`

const shown = (env: Record<string, string>) =>
  JSON.parse(execFileSync(process.execPath, ['--input-type=module', '--eval', script], { env, encoding: 'utf8' })) as {
    done: boolean
    shown: string[]
  }

test(
  'the value of a variable is gone from what the kernel shows, and nothing else is',
  { skip: process.platform !== 'linux' },
  () => {
    for (const env of [
      { SECRET: 'größe', OTHER: 'größe', NO_SECRET: 'größe' },
      { OTHER: 'x SECRET=y', SECRET: 'abc', LAST: 'abc' },
      { OTHER: 'x', LAST: 'y' },
      { OTHER: 'x', SECRET: '' },
    ] as Record<string, string>[]) {
      const { done, shown: entries } = shown(env)
      assert.equal(done, true)
      const { SECRET, ...others } = env
      const kept = Object.entries(others).map(([name, value]) => `${name}=${Buffer.from(value).toString('latin1')}`)
      assert.deepEqual(
        entries.filter((entry) => entry !== '').toSorted(),
        [...kept, ...(SECRET === undefined ? [] : ['SECRET='])].toSorted(),
      )
    }
  },
)
