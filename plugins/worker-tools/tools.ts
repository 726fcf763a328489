import type { FastifyBaseLogger } from 'fastify'
import { type Static, type TSchema, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { isAppError } from '#kernel'
import type { ToolResult } from '#contracts/tools'
import type { WorkerTools } from '#contracts/workers'
import { listFiles } from './list-files.ts'
import type { Processes } from './processes.ts'
import { readFile } from './read-file.ts'
import { runScript } from './run-script.ts'
import { type Limits, shell } from './shell.ts'
import type { Workspace } from './workspace.ts'
import { writeFile } from './write-file.ts'

interface Tool {
  readonly input: TSchema
  call(input: never, limits: Limits): Promise<ToolResult>
}

export interface ToolsOptions {
  readonly workspace: Workspace
  readonly processes: Processes
  readonly log: FastifyBaseLogger
}

/** A tool with the form of its input: the runner has checked it, but what runs in a sandbox trusts nobody. */
const tool = <S extends TSchema>(input: S, call: (input: Static<S>, limits: Limits) => Promise<ToolResult>): Tool => ({
  input,
  call,
})

const seconds = Type.Optional(Type.Number({ exclusiveMinimum: 0 }))
const path = Type.String({ minLength: 1, maxLength: 4_096 })

const ShellInput = Type.Object({
  command: Type.String({ minLength: 1 }),
  timeoutSeconds: seconds,
  cwd: Type.Optional(path),
})
const ReadInput = Type.Object({
  path,
  offset: Type.Optional(Type.Integer({ minimum: 0 })),
  limit: Type.Optional(Type.Integer({ minimum: 1 })),
})
const WriteInput = Type.Object({ path, content: Type.String(), append: Type.Optional(Type.Boolean()) })
const ListInput = Type.Object({
  path: Type.Optional(path),
  depth: Type.Optional(Type.Integer({ minimum: 1, maximum: 20 })),
})
const ScriptFile = Type.Object({
  path,
  data: Type.String({ description: 'Base64.' }),
  executable: Type.Optional(Type.Boolean()),
})
const ScriptInput = Type.Object({
  path,
  args: Type.Optional(Type.Array(Type.String())),
  folder: Type.Optional(path),
  files: Type.Optional(Type.Array(ScriptFile)),
  timeoutSeconds: seconds,
})

export function createTools({ workspace, processes, log }: ToolsOptions): WorkerTools {
  const machine = { workspace, processes }
  const tools = new Map<string, Tool>([
    ['shell', tool(ShellInput, (input, limits) => shell(machine, input, limits))],
    ['read_file', tool(ReadInput, (input) => readFile(workspace, input))],
    ['write_file', tool(WriteInput, (input) => writeFile(workspace, input))],
    ['list_files', tool(ListInput, (input) => listFiles(workspace, input))],
    ['run_script', tool(ScriptInput, (input, limits) => runScript(machine, input, limits))],
  ])
  return {
    async call(name, input, limits) {
      const found = tools.get(name)
      if (!found) return failed(`There is no tool '${name}' in this sandbox; it has: ${[...tools.keys()].join(', ')}.`)
      const wrong = Value.Errors(found.input, input).First()
      if (wrong) return failed(`The input of '${name}' is invalid: ${wrong.path} ${wrong.message}.`)
      try {
        await workspace.keep()
        return await found.call(input as never, limits)
      } catch (err) {
        // Only a sentence that was written for people leaves: an unknown exception may hold anything.
        if (isAppError(err)) return failed(err.sentence ?? `'${name}' failed.`)
        log.warn({ err, tool: name }, 'a tool failed')
        return failed(`'${name}' failed.`)
      }
    },
  }
}

const failed = (content: string): ToolResult => ({ ok: false, content })
