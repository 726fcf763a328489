import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { parseEnv } from 'node:util'
import { parse } from 'yaml'
import { plan, risksOf } from '#kernel'
import { loadRole } from '../kernel/config.ts'

const root = fileURLToPath(new URL('..', import.meta.url))
const read = (file: string): Promise<string> => readFile(`${root}/${file}`, 'utf8')

interface Service {
  readonly command?: readonly string[]
  readonly environment: Readonly<Record<string, string | number>>
  readonly networks: readonly string[]
  readonly ports?: readonly string[]
  readonly healthcheck: { readonly test: readonly string[] }
  readonly volumes?: readonly string[]
}
interface Compose {
  readonly services: Readonly<Record<string, Service>>
  readonly configs: Readonly<Record<string, { readonly content: string }>>
  readonly networks: Readonly<Record<string, unknown>>
}

type Variables = Readonly<Record<string, string | undefined>>
const reference = /\$\$|\$\{([A-Z0-9_]+)(?::([-?])([^}]*))?\}/g

/** The file as compose reads it: YAML first, then `${A:-default}`, and `${A:?sentence}`, which refuses to start without A. */
async function compose(variables: Variables): Promise<Compose> {
  const fill = (text: string): string =>
    text.replaceAll(reference, (whole, name: string, kind: string | undefined, word: string) => {
      if (whole === '$$') return '$'
      const value = variables[name]
      if (value) return value
      if (kind === '?') throw new Error(`${name}: ${word}`)
      return kind === '-' ? word : ''
    })
  return parse(await read('compose.yaml'), (_, value) => (typeof value === 'string' ? fill(value) : value), {
    merge: true,
  }) as Compose
}

const example = parseEnv(await read('.env.example'))
const secret = 'AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8='
const demanded = [...(await read('compose.yaml')).matchAll(/\$\{([A-Z0-9_]+):\?/g)].map(([, name]) => name!)
/** What an operator has who filled in the example. */
const filledIn: Variables = { ...example, ...Object.fromEntries(demanded.map((name) => [name, secret])) }
const roles = ['conductor', 'gateway', 'runner', 'sidecar', 'vfs'] as const
const envOf = ({ environment }: Service): Record<string, string> =>
  Object.fromEntries(Object.entries(environment).map(([name, value]) => [name, String(value)]))
const fileOf = ({ command = [] }: Service): string => command[command.indexOf('--config') + 1]!

test('each role boots from its file with the environment that it gets, and without a risk', async () => {
  const { services } = await compose(filledIn)
  for (const name of roles) {
    const service = services[name]!
    assert.equal(fileOf(service), `config/${name}.yaml`)
    const role = await loadRole(`${root}/${fileOf(service)}`, { env: envOf(service) })
    plan(role)
    assert.deepEqual(risksOf(role), [], name)
    // A name that the file does not read would be a setting that does nothing.
    const text = await read(fileOf(service))
    const known = new Set([...text.matchAll(/\$\{([A-Z0-9_|]+)/g)].flatMap(([, names]) => names!.split('|')))
    assert.deepEqual(
      Object.keys(service.environment).filter((variable) => !known.has(variable)),
      [],
      name,
    )
  }
})

test('without a key or a password nothing starts, in a sentence, and the example says how to make it', async () => {
  assert.deepEqual(demanded.filter((name, i) => demanded.indexOf(name) === i).toSorted(), [
    'AGENT_API_KEY_PEPPER',
    'AGENT_ORC_DATABASE_PASSWORD',
    'CHAT_GATEWAY_SIGNING_KEY_CURRENT',
    'POSTGRES_SUPERUSER_PASSWORD',
    'RUNNER_SIGNING_KEY_CURRENT',
    'VFS_INTERNAL_SIGNING_KEY_CURRENT',
  ])
  const text = await read('.env.example')
  for (const name of demanded) {
    await assert.rejects(compose({ ...filledIn, [name]: '' }), new RegExp(`^Error: ${name}: .*; see \\.env\\.example$`))
    assert.match(text, new RegExp(`^# openssl rand -(base64|hex) \\d+\\..*\\n${name}=$`, 'm'))
  }
  const used = [...(await read('compose.yaml')).matchAll(reference)].flatMap(([, name]) => name ?? [])
  assert.deepEqual([...new Set(used)].toSorted(), Object.keys(example).toSorted(), 'the example names every variable')
})

test('a key is where it is needed, and nowhere else', async () => {
  const { services } = await compose(filledIn)
  const having = (variable: string): string[] => roles.filter((name) => services[name]!.environment[variable])
  assert.deepEqual(having('CHAT_GATEWAY_SIGNING_KEY_CURRENT'), ['conductor', 'gateway'])
  assert.deepEqual(having('AGENT_API_KEY_PEPPER'), ['conductor', 'gateway'])
  assert.deepEqual(having('RUNNER_SIGNING_KEY_CURRENT'), ['conductor', 'runner', 'sidecar', 'vfs'])
  assert.deepEqual(having('VFS_INTERNAL_SIGNING_KEY_CURRENT'), ['conductor', 'vfs'])
  assert.deepEqual(having('POSTGRES_PASSWORD'), ['conductor', 'gateway'])
})

test('addresses, published ports and health checks are those of listeners that others reach', async () => {
  const { services, networks } = await compose(filledIn)
  const listeners = Object.fromEntries(
    await Promise.all(
      roles.map(async (name) => {
        const service = services[name]!
        return [name, (await loadRole(`${root}/${fileOf(service)}`, { env: envOf(service) })).listeners] as const
      }),
    ),
  )
  const open = (name: string) =>
    Object.values(listeners[name]!).filter(({ host, port }) => port !== undefined && host === '0.0.0.0')
  for (const [from, variable] of [
    ['conductor', 'RUNNER_URLS'],
    ['gateway', 'CONDUCTOR_INTERNAL_URL'],
    ['runner', 'RUNNER_BASE_URL'],
    ['runner', 'SIDECAR_URL'],
    ['conductor', 'VFS_BASE_URL'],
    ['runner', 'VFS_BASE_URL'],
    ['vfs', 'CONDUCTOR_INTERNAL_URL'],
    ['sidecar', 'AGENT_ORC_RUNNER_HOSTS'],
  ] as const) {
    const said = String(services[from]!.environment[variable])
    const { hostname, port } = new URL(said.includes('://') ? said : `http://${said}`)
    const listener = open(hostname).find((one) => one.port === Number(port))
    assert.ok(listener, `${variable} of ${from}`)
    const admitted = [listener.hosts ?? hostname].flat().flatMap((text) => text.split(','))
    assert.ok(
      admitted.some((host) => host === hostname || host.includes(`//${hostname}:`)),
      `${hostname} answers to its name`,
    )
    const shared = services[from]!.networks.filter((network) => services[hostname]!.networks.includes(network))
    assert.ok(
      shared.some((network) => network !== 'outside'),
      `${from} reaches ${hostname}`,
    )
  }
  for (const name of roles) {
    for (const published of services[name]!.ports ?? []) {
      const [address, outer, inner] = published.split(':')
      assert.deepEqual([address, outer], ['127.0.0.1', inner])
      assert.ok(open(name).some(({ port }) => port === Number(inner)))
    }
    const [, port] = /127\.0\.0\.1:(\d+)\/healthz/.exec(services[name]!.healthcheck.test.join(' '))!
    assert.equal(listeners[name]![name]!.port, Number(port), `${name} is asked where it listens`)
  }
  const named = Object.values(services).flatMap((service) => service.networks)
  assert.deepEqual([...new Set(named)].toSorted(), Object.keys(networks).toSorted())
})

test('the database is that of a role which is no superuser', async () => {
  const { services, configs } = await compose(filledIn)
  const { content } = configs['database-role']!
  for (const name of ['conductor', 'gateway']) {
    const env = envOf(services[name]!)
    assert.equal(env['POSTGRES_HOST'], 'postgres')
    assert.equal(env['REDIS_URL'], 'redis://redis:6379')
    assert.match(content, new RegExp(`CREATE ROLE ${env['POSTGRES_USER']} LOGIN NOSUPERUSER NOBYPASSRLS`))
    assert.match(content, new RegExp(`CREATE DATABASE ${env['POSTGRES_DB']} OWNER ${env['POSTGRES_USER']};`))
  }
  const [, variable] = /\\getenv password (\w+)/.exec(content)!
  assert.equal(services['postgres']!.environment[variable!], services['conductor']!.environment['POSTGRES_PASSWORD'])
})

test('the image is that of a Node that runs us, as a user without rights, with the options of npm start', async () => {
  const text = await read('Dockerfile')
  assert.match(text, /^FROM node:24-slim$/m)
  assert.match(text, /^USER node$/m)
  const [, entry] = /^ENTRYPOINT (\[.*\])$/m.exec(text)!
  const { scripts } = JSON.parse(await read('package.json')) as { scripts: Record<string, string> }
  assert.equal(`${(JSON.parse(entry!) as string[]).join(' ')} start`, scripts['start'])
})
