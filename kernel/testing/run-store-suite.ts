import { describe } from 'node:test'
import { testClaims } from './run-store-claims.ts'
import { testLogs } from './run-store-logs.ts'
import { testQueue } from './run-store-queue.ts'
import { testReads } from './run-store-reads.ts'
import { testStarts } from './run-store-starts.ts'
import type { OpenStore } from './run-store-steps.ts'

/** What every RunStore promises. */
export function testRunStore(name: string, open: OpenStore): void {
  describe(`${name} keeps the promises of a run store`, () => {
    testStarts(open)
    testClaims(open)
    testLogs(open)
    testReads(open)
    testQueue(open)
  })
}
