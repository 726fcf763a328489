import type { TestContext } from 'node:test'
import { testRunStore } from '#testing'
import { openStores } from './stores.ts'

testRunStore('the store in PostgreSQL', async (t: TestContext) => (await openStores(t)).open())
