import type { Calls } from './inspector.ts'

/** Every function that was called in a stretch of time, with how often. */
export type Window = readonly Calls[]

export interface Entered {
  /** Files of which a chat calls a function. */
  readonly files: readonly string[]
  /** Generator functions that a chat calls, and how often. */
  readonly generators: readonly { readonly file: string; readonly name: string; readonly perChat: number }[]
}

/** Calls per chat above which a function belongs to every chat, after the calls of an idle time of the same length are subtracted. */
const ofEachChat = 0.5

/** Finds the files and generators that a chat enters in one process. `textOf` gives a file's text. */
export function entered(seen: {
  readonly busy: Window
  readonly idle: Window
  readonly chats: number
  readonly textOf: (file: string) => string
}): Entered {
  const idle = new Map(seen.idle.map((one) => [placeOf(one), one.count]))
  const called = seen.busy
    .map((one) => ({ ...one, perChat: (one.count - (idle.get(placeOf(one)) ?? 0)) / seen.chats }))
    .filter(({ perChat }) => perChat >= ofEachChat)
  return {
    files: [...new Set(called.map(({ file }) => file))].toSorted(),
    generators: called
      .filter(({ file, from, to }) => isGenerator(seen.textOf(file).slice(from, to)))
      .map(({ file, name, perChat }) => ({ file, name, perChat: Math.round(perChat * 10) / 10 }))
      .toSorted((a, b) => a.file.localeCompare(b.file) || a.name.localeCompare(b.name)),
  }
}

const placeOf = ({ file, name, from }: Calls): string => `${file} ${from} ${name}`

/** Recognizes a generator by the first characters of its text: `function*`, `async function*`, or a star before a method's name. */
const isGenerator = (text: string): boolean => /^(async\s+)?(function\s*)?\*/.test(text)
