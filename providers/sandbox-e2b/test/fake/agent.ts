import { Value } from '@sinclair/typebox/value'
import type { ApiAnswer, ApiRequest } from '#testing'
import { SendSignalRequest, StartRequest } from './documented.ts'
import type { FakeSandbox } from './sandboxes.ts'
import { type FakeE2bOptions, parse } from './options.ts'

/** A refusal in the Connect protocol. */
const refuse = (status: number, code: string, message: string): ApiAnswer => ({ status, body: { code, message } })

const envelope = (message: unknown, flags = 0): Buffer => {
  const json = Buffer.from(JSON.stringify(message))
  const head = Buffer.from([flags, 0, 0, 0, 0])
  head.writeUInt32BE(json.length, 1)
  return Buffer.concat([head, json])
}

/** envd, E2B's agent inside of each sandbox, behind the proxy that finds it. */
export function createAgent(sandboxes: ReadonlyMap<string, FakeSandbox>, { routeLag }: FakeE2bOptions) {
  const asked = new Map<string, number>()
  return ({ url, headers, body }: ApiRequest): ApiAnswer => {
    const id = String(headers['e2b-sandbox-id'])
    const times = asked.get(id) ?? 0
    asked.set(id, times + 1)
    const sandbox = sandboxes.get(id)
    if (sandbox?.state !== 'running' || times < routeLag) {
      return { status: 502, body: { sandboxId: id, message: 'The sandbox was not found', code: 502 } }
    }
    if (headers['e2b-sandbox-port'] !== '49983') return { status: 502, body: { message: 'Port is closed', code: 502 } }
    if (sandbox.accessToken !== undefined && headers['x-access-token'] !== sandbox.accessToken) {
      return refuse(401, 'unauthenticated', 'unauthorized access, please provide a valid access token')
    }
    const streams = headers['content-type'] === 'application/connect+json'
    const message = parse(streams ? body.subarray(5, 5 + body.readUInt32BE(1)) : body)
    switch (url) {
      case '/process.Process/Start':
        if (!streams) return { status: 415 }
        return Value.Check(StartRequest, message) ? start(sandbox, message) : malformed
      case '/process.Process/SendSignal':
        return Value.Check(SendSignalRequest, message) ? signal(sandbox, message) : malformed
      case '/process.Process/List':
        return { status: 200, body: listOf(sandbox) }
      default:
        return refuse(404, 'unimplemented', 'no such procedure')
    }
  }
}

const malformed = refuse(400, 'invalid_argument', 'the message is not as documented')

/** As JSON has it, an empty list is left out. */
const listOf = ({ processes }: FakeSandbox): object => {
  const all = [...processes].map(([pid, { config, tag }]) => ({ config, pid, ...(tag === undefined ? {} : { tag }) }))
  return all.length === 0 ? {} : { processes: all }
}

function signal({ processes }: FakeSandbox, message: typeof SendSignalRequest.static): ApiAnswer {
  const { process: selector } = message
  const found = [...processes].find(([pid, { tag }]) =>
    'pid' in selector ? selector.pid === pid : selector.tag === tag,
  )
  if (!found) return refuse(404, 'not_found', 'process not found')
  found[1].child.kill(message.signal === 'SIGNAL_SIGKILL' ? 'SIGKILL' : 'SIGTERM')
  return { status: 200, body: {} }
}

function start({ machine, processes }: FakeSandbox, { process: wanted, tag }: typeof StartRequest.static): ApiAnswer {
  const { cmd, args = [], envs = {} } = wanted
  // What envd gives to every process, and what was asked for: nothing else of this machine.
  const own = { PATH: process.env['PATH'] ?? '', HOME: '/home/user', USER: 'user', LOGNAME: 'user' }
  const child = machine.start({ command: [cmd, ...args], env: { ...own, ...envs } })
  const pid = child.pid!
  processes.set(pid, { child, config: wanted, tag })
  child.once('exit', () => processes.delete(pid))
  return {
    status: 200,
    headers: { 'content-type': 'application/connect+json' },
    stream(response) {
      const say = (event: unknown): void => void response.write(envelope({ event }))
      const data = (name: string) => (bytes: Buffer) => say({ data: { [name]: bytes.toString('base64') } })
      say({ start: { pid } })
      child.stdout!.on('data', data('stdout'))
      child.stderr!.on('data', data('stderr'))
      child.once('close', (code) => {
        say({ end: { exitCode: code ?? -1, exited: code !== null, status: `exit status ${code ?? -1}` } })
        response.end(envelope({}, 2))
      })
    },
  }
}
