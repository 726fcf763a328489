// A thread for asked-thread.test.ts. It answers a question with its name, as soon as its gate is open.
import { parentPort } from 'node:worker_threads'

export interface Held {
  readonly name: string
  /** Closed while its only number is 0. */
  readonly gate?: Int32Array<SharedArrayBuffer>
}

parentPort?.on('message', ({ name, gate }: Held) => {
  if (gate) Atomics.wait(gate, 0, 0)
  parentPort?.postMessage(name)
})
parentPort?.postMessage('loaded')
