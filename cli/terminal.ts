import type { Command } from 'commander'

/** A failure the operator can do something about: printed as its sentence, without a stack. */
export class CliError extends Error {
  /** 1: it failed. 2: the command was used wrongly. */
  readonly exitCode: 1 | 2
  constructor(message: string, exitCode: 1 | 2 = 1) {
    super(message)
    this.name = 'CliError'
    this.exitCode = exitCode
  }
}

/** Where a command writes: answers on stdout, everything else on stderr. */
export interface Terminal {
  /** True with `--json`, and when stdout is no terminal. */
  readonly json: boolean
  /** Prints an answer: `value` as one JSON line, or the text for people. */
  print(value: unknown, text: () => string): void
  /** A piece of text for people that belongs to stdout, e.g. a chat's words. */
  write(text: string): void
  /** Writes progress to stderr. */
  progress(text: string): void
  /** One of many small steps: on a terminal each replaces the one before, and `''` takes the last away. */
  step(text: string): void
}

export const terminalOf = (command: Command): Terminal => {
  const json = Boolean(command.opts()['json']) || !process.stdout.isTTY
  return {
    json,
    print: (value, text) => void process.stdout.write(json ? `${JSON.stringify(value)}\n` : `${text()}\n`),
    write: (text) => void process.stdout.write(text),
    progress: (text) => void process.stderr.write(`${text}\n`),
    step(text) {
      if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${text}`)
      else if (text !== '') process.stderr.write(`${text}\n`)
    },
  }
}

/** Formats rows as aligned columns. */
export function columns(rows: readonly (readonly string[])[]): string {
  const widths = (rows[0] ?? []).map((_, i) => Math.max(...rows.map((row) => row[i]?.length ?? 0)))
  return rows
    .map((row) =>
      row
        .map((cell, i) => cell.padEnd(widths[i] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}
