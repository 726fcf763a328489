import { readdir, readFile } from 'node:fs/promises'
import type { TestContext } from 'node:test'
import pino from 'pino'
import {
  bareSidecar,
  collectRun,
  type EnvelopeFields,
  type ModelReply,
  type ModelRequest,
  type ModelRequestBody,
  type ModelServer,
  type ModelServerOptions,
  type ResponsesRequestBody,
  startModelServer,
  testEnvelope,
} from '#testing'
import type { RunEvent } from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import type { SidecarLink } from '#contracts/sidecar'
import type { ModelEgress } from '#contracts/model'
import type { RuntimeBConfig } from '../config.ts'
import { codexProgram } from '../app-server.ts'
import { runtimeB, type RuntimeBOptions } from '../index.ts'

const { missing } = codexProgram()
// Set by `npm run test:runtimes`, which has just installed it.
if (missing !== undefined && process.env['AGENT_ORC_VENDOR_RUNTIMES'] === 'required') throw new Error(missing)
/** Why tests that need Codex are skipped here. */
export const skip = missing ?? false

export interface Stage {
  readonly runtime: Runtime
  readonly link: SidecarLink
  readonly models: ModelServer
  run(
    prompt: string,
    fields?: EnvelopeFields,
    signal?: AbortSignal,
    onEvent?: (event: RunEvent) => void,
  ): Promise<RunEvent[]>
}
export const model: EnvelopeFields = { profile: { runtime: 'runtime_b', model: 'openai/stand-in' } }

type Options = RuntimeBOptions & { readonly config?: Partial<RuntimeBConfig>; readonly egress?: ModelEgress }

export async function stage(
  t: Pick<TestContext, 'after'>,
  reply: ModelServerOptions['reply'] = { text: 'fine' },
  options: Options = {},
): Promise<Stage> {
  const models = await startModelServer(t, { reply })
  return { ...(await stageAt(t, models.url, options)), models }
}

/** The same at a model server that somebody else has started. */
export async function stageAt(
  t: Pick<TestContext, 'after'>,
  baseUrl: string,
  { config: more, egress, ...options }: Options = {},
): Promise<Omit<Stage, 'models'>> {
  const config = { apiKey: 'secret', baseUrl, contextTokens: 128_000, maxProcesses: 8, ...more }
  const onStop = (fn: () => Promise<void>): void => t.after(fn)
  const runtime = await runtimeB({ config, egress, log: pino({ level: 'silent' }), onStop }, options)
  const link = bareSidecar(runtime)
  return {
    runtime,
    link,
    run: (prompt, fields = {}, signal, onEvent) => {
      const profile = { ...model.profile, ...fields.profile }
      return collectRun(link, testEnvelope({ ...model, ...fields, prompt, profile }), signal, onEvent)
    },
  }
}

export const bodyOf = ({ body }: ModelRequest | { body: ModelRequestBody }): ResponsesRequestBody =>
  body as unknown as ResponsesRequestBody

/** What a request says in words, as `role: text` and `type: …` lines. */
export const conversation = (request: ModelRequest): string[] =>
  bodyOf(request).input.map(({ type, role, content, output, name }) => {
    if (type === 'message') return `${role}: ${(content ?? []).map(({ text }) => text).join('')}`
    return `${type}: ${JSON.stringify(output ?? name)}`
  })

export const asked = (body: ModelRequestBody): string => conversation({ body } as ModelRequest).at(-1) ?? ''

export const call = (name: string, args: unknown = {}, id?: string): NonNullable<ModelReply['toolCalls']>[number] => ({
  name,
  namespace: 'mcp__runner',
  arguments: args,
  ...(id === undefined ? {} : { id }),
})

/** Processes that this one has started and that are still there. */
export async function children(): Promise<number[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number)
  const found = await Promise.all(
    pids.map(async (pid) => {
      const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '')
      const [, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
      return Number(parent) === process.pid ? [pid] : []
    }),
  )
  return found.flat()
}

/** Looks again and again until it is so. */
export async function until(so: () => Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 10_000; !(await so());) {
    if (Date.now() > end) throw new Error('it did not come to be')
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}
