import { createPrivateKey, X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import type { Socket } from 'node:net'
import { createSecureContext, type Server } from 'node:tls'
import { type Static, Type } from '@sinclair/typebox'
import type { FastifyInstance } from 'fastify'
import fp from 'fastify-plugin'
import { Settings } from './settings.ts'

const pem = (description: string) =>
  Type.Optional(
    Type.String({
      minLength: 1,
      description: `${description} A path, whose file is read again when it changes, or PEM itself.`,
    }),
  )

/** The TLS settings of a listener in a role file. Without `cert` the listener uses plain HTTP. */
export const ListenerTls = Settings({
  cert: pem('Certificate of this listener, and those between it and its authority.'),
  key: pem('Private key of the certificate.'),
  ca: pem('Authorities whose client certificates are accepted.'),
  requestClientCert: Type.Boolean({
    default: false,
    description: 'Require a client certificate that `ca` has signed, except for /healthz. Needs `ca`.',
  }),
})

/** The TLS settings towards peers in a role file, for peers whose addresses begin with https. */
export const PeerTls = Settings(
  {
    ca: pem('Authorities that sign the certificates of peers; those of the system by default.'),
    cert: pem('Client certificate, where peers ask for one.'),
    key: pem('Private key of the client certificate.'),
  },
  { default: {} },
)

type Given = { -readonly [K in 'cert' | 'key' | 'ca']?: string | undefined }

/** The contents of the files, in the form for Node. Undefined: nothing is set. */
export interface TlsFiles {
  readonly cert?: string
  readonly key?: string
  readonly ca?: string
}

/** A sentence about settings that cannot work. Undefined when they can. */
export function tlsProblem({ cert, key, ca, requestClientCert }: Static<typeof ListenerTls>): string | undefined {
  if ((cert === undefined) !== (key === undefined)) return 'has a certificate or a key alone; set both `cert` and `key`'
  if (!requestClientCert) return undefined
  if (cert === undefined) return 'asks for client certificates over plain HTTP; set `cert` and `key`'
  return ca === undefined
    ? 'would accept client certificates of every public authority; set `ca` to your own'
    : undefined
}

/** Milliseconds between checks of the files. Certificates are renewed days before the old ones expire. */
const lookEveryMs = 10_000

interface TlsLog {
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
}

/**
 * Certificates and keys as their files currently are, because they are renewed while a process runs. Files that are unusable are ignored until they
 * become usable, because a certificate may be written before its key.
 */
export class LiveTls {
  readonly #given: Given
  readonly #log: TlsLog
  readonly #listeners = new Set<(files: TlsFiles) => void>()
  readonly #timer: NodeJS.Timeout | undefined
  #files: TlsFiles
  /** The problem that was last reported, so that it is logged only once. */
  #refused: string | undefined

  /** `files`: the contents of the files of `given` at the start. */
  constructor(given: Given, files: TlsFiles, log: TlsLog, everyMs = lookEveryMs) {
    this.#given = given
    this.#files = files
    this.#log = log
    const inFiles = Object.values(given).some((value) => value !== undefined && !isPem(value))
    this.#timer = inFiles ? setInterval(() => void this.look(), everyMs).unref() : undefined
  }

  get files(): TlsFiles {
    return this.#files
  }
  /** Registers a listener for the files that connections must use from now on. */
  onChange(listener: (files: TlsFiles) => void): void {
    this.#listeners.add(listener)
  }
  /** Reads the files again. Never rejects. */
  async look(): Promise<void> {
    try {
      const files = await readAll(this.#given, (name, path) => readFile(path, 'utf8').catch(unreadable(name, path)))
      if (same(files, this.#files)) return void (this.#refused = undefined)
      checkUsable(files)
      this.#files = files
      this.#refused = undefined
      for (const listener of this.#listeners) listener(files)
      this.#log.info({ validTo: files.cert && new X509Certificate(files.cert).validTo }, 'certificates were reloaded')
    } catch (err) {
      const why = (err as Error).message
      if (why !== this.#refused) this.#log.warn({ err }, 'new certificates cannot be used; the old ones stay')
      this.#refused = why
    }
  }
  close(): void {
    clearInterval(this.#timer)
    this.#listeners.clear()
  }
}

/** Reads the files and follows their changes. Undefined: no file is set. Throws an Error that names an unusable file. */
export function followTls({ cert, key, ca }: Given, log: TlsLog): LiveTls | undefined {
  if ((cert === undefined) !== (key === undefined)) throw new Error('tls needs both `cert` and `key`, or none of them')
  const given = { cert, key, ca }
  if (Object.values(given).every((value) => value === undefined)) return undefined
  const files = Object.fromEntries(
    named(given).map(([name, value]) => [name, isPem(value) ? value : fileOf(name, value)]),
  ) as TlsFiles
  checkUsable(files)
  return new LiveTls(given, files, log)
}

/**
 * New connections of a listener use the current certificates; existing connections keep theirs. A listener that closes does not wait for clients
 * that have not finished their handshake, which have two minutes for it.
 */
export const liveTls = fp(
  async (app: FastifyInstance, { tls }: { readonly tls?: LiveTls | undefined }) => {
    if (!tls) return
    const server = app.server as unknown as Server
    tls.onChange((files) => server.setSecureContext(files))
    const early = new Map<string, Socket>()
    const addressOf = ({ remoteAddress, remotePort }: Socket): string => `${remoteAddress} ${remotePort}`
    server.on('connection', (socket: Socket) => {
      const address = addressOf(socket)
      early.set(address, socket)
      socket.once('close', () => early.delete(address))
    })
    server.on('secureConnection', (socket) => early.delete(addressOf(socket)))
    app.addHook('preClose', async () => early.forEach((socket) => socket.destroy()))
    app.addHook('onClose', async () => tls.close())
  },
  { name: 'agent-orc-tls' },
)

const isPem = (value: string): boolean => value.startsWith('-----BEGIN')
const named = (given: Given): [string, string][] =>
  Object.entries(given).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]]))
const same = (a: TlsFiles, b: TlsFiles): boolean => a.cert === b.cert && a.key === b.key && a.ca === b.ca

async function readAll(given: Given, read: (name: string, path: string) => Promise<string>): Promise<TlsFiles> {
  const all = named(given).map(async ([name, value]) => [name, isPem(value) ? value : await read(name, value)])
  return Object.fromEntries(await Promise.all(all)) as TlsFiles
}

/** Throws OpenSSL's error for files that cannot be used, or a key that does not match its certificate. */
function checkUsable(files: TlsFiles): void {
  const { cert, key = '', ca } = files
  // An empty file, which is just being written, would count as no certificate authority.
  if (ca !== undefined) void new X509Certificate(ca)
  if (cert !== undefined && !new X509Certificate(cert).checkPrivateKey(createPrivateKey(key)))
    throw new Error('tls.key is not the key of tls.cert')
  createSecureContext(files)
}

const unreadable =
  (name: string, path: string) =>
  (cause: unknown): never => {
    throw new Error(`tls.${name}: ${path} cannot be read (${String((cause as NodeJS.ErrnoException).code)})`, { cause })
  }

function fileOf(name: string, path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (cause) {
    return unreadable(name, path)(cause)
  }
}
