import { readFile } from 'node:fs/promises'
import { type IncomingHttpHeaders, type IncomingMessage, request, type ServerResponse } from 'node:http'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import type { EgressHost } from '#contracts/egress'
import type { Resolve } from '#kit/outbound'
import { testKernel } from '#testing'
import { hostRoutes } from '../egress/host-routes.ts'
import { EgressRuns } from '../egress/run-egress.ts'

const certificate = (name: string): Promise<string> =>
  readFile(new URL(`../../../test/certificates/${name}.pem`, import.meta.url), 'utf8')

export interface Asked {
  readonly method: string
  readonly target: string
  readonly headers: IncomingHttpHeaders
  readonly body: string
}
type Respond = (asked: Asked, response: ServerResponse, request: IncomingMessage) => void

/** A host behind TLS, with a certificate of the tests' own authority for `localhost`. Answers `pong` unless `respond` does otherwise. */
export async function tlsHost(t: Pick<TestContext, 'after'>, respond?: Respond, name = 'server') {
  const asked: Asked[] = []
  const key = await readFile(new URL(`../../../test/certificates/${name}.key`, import.meta.url), 'utf8')
  const server = createServer({ cert: await certificate(name), key }, async (incoming, response) => {
    const parts: Buffer[] = []
    try {
      for await (const part of incoming) parts.push(part as Buffer)
    } catch {
      return
    }
    const { method, url, headers } = incoming
    const one = { method: method!, target: url!, headers, body: Buffer.concat(parts).toString() }
    asked.push(one)
    if (respond) respond(one, response, incoming)
    else response.end('pong')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  return { asked, port, name: `localhost:${port}`, server }
}

export interface OnEgress {
  readonly hosts: readonly EgressHost[]
  readonly secrets?: Readonly<Record<string, string>>
  readonly resolve?: Resolve
  readonly requestMs?: number
}

/** The routes on a real socket, and a run that may reach hosts. */
export async function egressOf(t: Pick<TestContext, 'after'>, { hosts, secrets = {}, ...settings }: OnEgress) {
  const ca = await certificate('ca')
  const runs = new EgressRuns({ ca: () => ca, ...settings })
  const counted: string[] = []
  const plugin = definePlugin({
    name: 'hosts',
    async setup(ctx) {
      const counts = { asked: (place: string, status: number) => void counted.push(`${place} ${status}`) }
      ctx.routes('workers', hostRoutes({ runs, counts, log: ctx.log }))
      ctx.onStop(async () => runs.close())
      return {}
    },
  })
  const kernel = await testKernel(t, [plugin], { listen: true, listeners: ['workers'], requests: true })
  const run = runs.open({ hosts: [...hosts], secrets: { ...secrets } }, 'sess-1')
  return { kernel, runs, run, counted, url: kernel.urls['workers']!, access: run.accessAt(kernel.urls['workers']!) }
}

export interface Answer {
  readonly status: number
  readonly reason: string
  readonly headers: IncomingHttpHeaders
  readonly body: string
}

export interface Ask {
  readonly method?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string | Buffer
}

/** Sends a request to a listener with any target, as programs send it to a proxy. */
export function ask(
  listener: string,
  target: string,
  { method = 'GET', headers = {}, body }: Ask = {},
): Promise<Answer> {
  const { hostname, port } = new URL(listener)
  return new Promise((resolve, reject) => {
    const sent = request({ hostname, port, path: target, method, headers, agent: false }, async (response) => {
      const parts: Buffer[] = []
      try {
        for await (const part of response) parts.push(part as Buffer)
      } catch (error) {
        return reject(error as Error)
      }
      const { statusCode = 0, statusMessage: reason = '' } = response
      resolve({ status: statusCode, reason, headers: response.headers, body: Buffer.concat(parts).toString() })
    })
    sent.on('error', reject).end(body)
  })
}

export const basic = (key: string): string => `Basic ${Buffer.from(`run:${key}`).toString('base64')}`
