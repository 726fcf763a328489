import type { ChildProcess } from 'node:child_process'
import type { Job } from './job.ts'
import type { Processes } from './processes.ts'

/** `single`: every plugin in one process. `four`: one process per role. */
export type Form = 'single' | 'four'
/** `there` is the checkout that this one is measured against. */
export type TargetName = 'model' | 'proxy' | Form | `${Form} there`
/** The model of the stand-in; `slow` streams one delta per second, as many as the options say. */
export type ModelName = 'burst-20' | 'tick-20' | 'burst-20000' | 'slow' | `slow-${number}`

/** Something that answers chats. */
export interface Target<Name extends string = TargetName> {
  readonly name: Name
  /** From the first spawn to an answer to the first probe. */
  readonly bootMs: number
  /** Roots of its process trees; the stand-in is not among them, except for itself. */
  roots(): number[]
  /** Roots of trees of which only PostgreSQL's processes belong to the target. */
  postgresRoots?(): number[]
  chat(model: ModelName, sync: boolean): Chat
  /** A streamed chat with an agent on the builtin provider. */
  readonly builtin?: Chat
}
export type Chat = Pick<Job, 'requests' | 'body' | 'format'>

const script = (name: string): string => new URL(name, import.meta.url).pathname

/** A target that speaks the model's own protocol. It has no synchronous form: the whole stream is the answer. */
export function openaiTarget(
  name: TargetName,
  url: string,
  children: readonly ChildProcess[],
  slow: number,
  bootMs: number,
): Target {
  return {
    name,
    bootMs,
    roots: () => children.map((child) => child.pid ?? 0),
    chat: (model) => ({
      requests: [{ origin: url, path: '/v1/chat/completions', headers: {} }],
      body: JSON.stringify({
        model: model === 'slow' ? `slow-${slow}` : model,
        stream: true,
        messages: [{ role: 'user', content: 'Hello' }],
      }),
      format: 'openai',
    }),
  }
}

/** The stand-in model server itself: what everything else is compared with. */
export async function startModel(
  processes: Processes,
  slow: number,
): Promise<Target & { readonly url: string; readonly child: ChildProcess }> {
  const began = performance.now()
  const { child, line } = await processes.node([script('model-server.ts')])
  const url = String(line.url)
  return { ...openaiTarget('model', url, [child], slow, performance.now() - began), url, child }
}

/** The yardstick: client -> proxy -> proxy -> model, each hop its own process. */
export async function startProxy(processes: Processes, modelUrl: string, slow: number): Promise<Target> {
  const began = performance.now()
  const inner = await processes.node([script('proxy.ts'), modelUrl])
  const outer = await processes.node([script('proxy.ts'), String(inner.line.url)])
  return openaiTarget('proxy', String(outer.line.url), [inner.child, outer.child], slow, performance.now() - began)
}
