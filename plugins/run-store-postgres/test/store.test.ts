import type { TestContext } from 'node:test'
import { testRunStore } from '#testing'
import { openStores } from './stores.ts'

testRunStore('run-store-postgres', async (t: TestContext) => (await openStores(t)).open())
