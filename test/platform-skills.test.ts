import assert from 'node:assert/strict'
import { test } from 'node:test'
import { definePlugin } from '#kernel'
import { Signers } from '#contracts/signing'
import { Toolkit } from '#contracts/tools'
import { fake, testKernel } from '#testing'
import memoryTools from '../plugins/memory/runner/index.ts'
import sandboxes from '../plugins/sandboxes/index.ts'
import skillCache from '../plugins/skills/runner/index.ts'
import { readSeeds } from '../plugins/skills/seeds.ts'
import tools from '../plugins/tools/index.ts'
import vfsRunner from '../plugins/vfs/runner/index.ts'

/** Tools that no skill explains, and why. */
const without = {
  skill_read: 'the index of the skills explains it',
  skill_resource: 'the index of the skills explains it',
  run_skill_script: 'the index of the skills explains it',
}

test('each tool of a runner is explained by a platform skill, or by nothing on purpose', async (t) => {
  const found: { toolkit?: Toolkit } = {}
  const taker = definePlugin({
    name: 'taker',
    requires: { toolkit: Toolkit },
    setup: async ({ deps }) => (Object.assign(found, deps), {}),
  })
  const vfs = { name: 'vfs-runner', plugin: vfsRunner, config: { baseUrl: 'http://vfs.test:7050' } }
  const signers = fake(Signers, { vfs: { sign: () => ({}), verify: () => Promise.reject(new Error('never asked')) } })
  await testKernel(t, [tools, sandboxes, skillCache, memoryTools, signers, vfs, taker], {
    listeners: ['runner', 'workers'],
  })
  const live = found.toolkit!.specs().map(({ name }) => name)
  const seeds = await readSeeds(undefined, { warn: (fields) => assert.fail(JSON.stringify(fields)) })
  const explained = seeds.flatMap(({ allowedTools }) => allowedTools)
  // A new tool gets a folder `plugins/skills/platform/using-<tool>`, or a line above.
  assert.deepEqual([...explained, ...Object.keys(without)].toSorted(), live.toSorted())
  for (const { name, body, description, allowedTools } of seeds) {
    assert.match(name, /^using-/)
    for (const tool of allowedTools) assert.ok(`${description} ${body}`.includes(tool), `${name} does not name ${tool}`)
  }
})
