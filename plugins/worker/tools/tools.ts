import type { FastifyBaseLogger } from 'fastify'
import type { Static, TSchema } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { isAppError } from '#kernel'
import type { ToolResult } from '#contracts/tools'
import { listFiles, ListInput, readFile, ReadInput, writeFile, WriteInput } from './files.ts'
import { createProcesses } from './processes.ts'
import { type CallLimits, FilesInput, placeFiles, runScript, ScriptInput, shell, ShellInput } from './shell.ts'
import { createWorkspace } from './workspace.ts'

/** Tools that act on the machine of a worker, inside one folder. */
export interface Tools {
  /** The real path of the agent's folder. */
  readonly workspace: string
  /** Never rejects when a tool fails: the result says so. */
  call(name: string, input: Readonly<Record<string, unknown>>, limits: CallLimits): Promise<ToolResult>
}

interface ToolsSettings {
  /** The agent's folder; created if it does not exist. */
  readonly workspace: string
  /** `PATH`, `LANG` and `TMPDIR` of the processes that tools start. */
  readonly path: string
  readonly lang: string
  readonly tmpDir: string
}

interface Tool {
  readonly input: TSchema
  call(input: never, limits: CallLimits): Promise<ToolResult>
}

/** A tool with the schema of its input. The runner has checked the input already, but a worker in a sandbox checks again. */
const tool = <S extends TSchema>(
  input: S,
  call: (input: Static<S>, limits: CallLimits) => Promise<ToolResult>,
): Tool => ({
  input,
  call,
})

export async function createTools(settings: ToolsSettings, log: FastifyBaseLogger): Promise<Tools> {
  const workspace = await createWorkspace(settings.workspace)
  // This is the whole environment of a tool, which must not see the worker's token.
  const { path, lang, tmpDir } = settings
  const processes = createProcesses({ PATH: path, HOME: workspace.root, LANG: lang, TMPDIR: tmpDir })
  const machine = { workspace, processes }
  const tools = new Map<string, Tool>([
    ['shell', tool(ShellInput, (input, limits) => shell(machine, input, limits))],
    ['read_file', tool(ReadInput, (input) => readFile(workspace, input))],
    ['write_file', tool(WriteInput, (input) => writeFile(workspace, input))],
    ['list_files', tool(ListInput, (input) => listFiles(workspace, input))],
    ['place_files', tool(FilesInput, (input) => placeFiles(machine, input))],
    ['run_script', tool(ScriptInput, (input, limits) => runScript(machine, input, limits))],
  ])
  return {
    workspace: workspace.root,
    async call(name, input, limits) {
      const found = tools.get(name)
      if (!found) return failed(`There is no tool '${name}' in this sandbox; it has: ${[...tools.keys()].join(', ')}.`)
      const wrong = Value.Errors(found.input, input).First()
      if (wrong) return failed(`The input of '${name}' is invalid: ${wrong.path} ${wrong.message}.`)
      try {
        await workspace.keep()
        return await found.call(input as never, limits)
      } catch (err) {
        // Only the sentence of an AppError is shown: the text of an unknown exception may hold anything.
        if (isAppError(err)) return failed(err.sentence ?? `'${name}' failed.`)
        log.warn({ err, tool: name }, 'a tool failed')
        return failed(`'${name}' failed.`)
      }
    },
  }
}

const failed = (content: string): ToolResult => ({ ok: false, content })
