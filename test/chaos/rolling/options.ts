import { parseArgs } from 'node:util'

export interface Options {
  /** How often each process is restarted. */
  readonly restarts: number
  /** Chats begun per second. */
  readonly rate: number
  /** How long a chat takes at most. */
  readonly seconds: number
  readonly redisPause: boolean
  /** Processes speak TLS with each other. */
  readonly tls: boolean
  readonly seed: number
  readonly json: boolean
}

export const usage = `npm run chaos:rolling -- [--restarts 20] [--rate 20] [--seconds 15] [--redis-pause] [--tls] [--seed N] [--json]
  --restarts     how often each of the eight processes is stopped with SIGTERM and started again
  --rate         chats begun per second, by the clock
  --seconds      how long a chat takes at most; at least one second
  --redis-pause  stop Redis for a minute meanwhile
  --tls          processes speak TLS with each other, and each shows a certificate
  --json         print the verdict only`

export function readOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      restarts: { type: 'string', default: '20' },
      rate: { type: 'string', default: '20' },
      seconds: { type: 'string', default: '15' },
      'redis-pause': { type: 'boolean', default: false },
      tls: { type: 'boolean', default: false },
      seed: { type: 'string', default: String(Math.floor(Math.random() * 1e9)) },
      json: { type: 'boolean', default: false },
    },
  })
  const atLeast = (name: 'restarts' | 'rate' | 'seconds' | 'seed', least: number): number => {
    const value = Number(values[name])
    if (!(value >= least)) throw new TypeError(`--${name} expects a number, ${least} or more`)
    return value
  }
  return {
    restarts: Math.round(atLeast('restarts', 0)),
    rate: atLeast('rate', 0.1),
    seconds: atLeast('seconds', 1),
    redisPause: values['redis-pause'],
    tls: values.tls,
    seed: Math.round(atLeast('seed', 0)),
    json: values.json,
  }
}
