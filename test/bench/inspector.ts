import type { ChildProcess } from 'node:child_process'

/** The memory of a process after a full garbage collection, in bytes, and how many handles, timers and requests of each kind it has. */
export interface Measured {
  readonly rss: number
  readonly heapUsed: number
  /** Buffers and other memory that belongs to objects of the heap but is not in it. */
  readonly external: number
  readonly resources: Readonly<Record<string, number>>
}

/** A function of ours that was called, by its place in the file. */
export interface Calls {
  readonly file: string
  readonly name: string
  /** The range of its text in the file, in characters; the start tells functions of one name apart. */
  readonly from: number
  readonly to: number
  readonly count: number
}

export interface Question {
  readonly kind: 'measure' | 'snapshot' | 'calls'
  readonly file?: string
}

export type Reply =
  | { readonly kind: 'measured'; readonly measured: Measured }
  | { readonly kind: 'snapshot'; readonly file: string }
  | { readonly kind: 'calls'; readonly calls: readonly Calls[] }
  | { readonly kind: 'warning'; readonly text: string }

/** Node's arguments for a process that can be inspected. */
export const inspectable: readonly string[] = ['--expose-gc', '--import', new URL('inspected.ts', import.meta.url).href]

/** A process that takes longer hangs. Snapshots of large heaps take seconds. */
const answerMs = 60_000

const ask = <Kind extends Reply['kind']>(
  child: ChildProcess,
  question: Question,
  kind: Kind,
): Promise<Extract<Reply, { kind: Kind }>> => {
  const { promise, resolve, reject } = Promise.withResolvers<Extract<Reply, { kind: Kind }>>()
  const late = setTimeout(() => reject(new Error(`process ${child.pid} does not answer`)), answerMs)
  const gone = (): void => reject(new Error(`process ${child.pid} has ended`))
  const hear = (told: Reply): void => {
    if (told.kind === kind) resolve(told as Extract<Reply, { kind: Kind }>)
  }
  child.on('message', hear).once('exit', gone)
  child.send(question)
  return promise.finally(() => {
    clearTimeout(late)
    child.off('message', hear).off('exit', gone)
  })
}

/** Collects garbage in the process, then measures it. One question at a time. */
export const measureProcess = async (child: ChildProcess): Promise<Measured> =>
  (await ask(child, { kind: 'measure' }, 'measured')).measured

export const writeSnapshot = async (child: ChildProcess, file: string): Promise<string> =>
  (await ask(child, { kind: 'snapshot', file }, 'snapshot')).file

/** Every function that was called since the last count; the first answer is empty and begins the count. */
export const countCalls = async (child: ChildProcess): Promise<readonly Calls[]> =>
  (await ask(child, { kind: 'calls' }, 'calls')).calls

/** Calls `hear` with each warning that Node gives in the process, e.g. of listeners that pile up. */
export function hearWarnings(child: ChildProcess, hear: (text: string) => void): void {
  child.on('message', (told: Reply) => {
    if (told.kind === 'warning') hear(told.text)
  })
}
