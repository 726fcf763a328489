import { readFileSync } from 'node:fs'
import { type Static, Type } from '@sinclair/typebox'
import { Settings } from './settings.ts'

const pem = (description: string) =>
  Type.Optional(Type.String({ minLength: 1, description: `${description} A path, or PEM itself.` }))

/** TLS of a listener as it stands in a role file. Without `cert` it speaks plain HTTP. */
export const ListenerTls = Settings({
  cert: pem('Certificate of this listener, and those between it and its authority.'),
  key: pem('Private key of the certificate.'),
  ca: pem('Authorities whose client certificates are accepted.'),
  requestClientCert: Type.Boolean({
    default: false,
    description: 'Answer nobody without a client certificate that `ca` has signed; /healthz aside. Needs `ca`.',
  }),
})

/** TLS towards peers as it stands in a role file, for those of their addresses that begin with https. */
export const PeerTls = Settings(
  {
    ca: pem('Authorities that sign the certificates of peers; those of the system unless given.'),
    cert: pem('Client certificate, where peers ask for one.'),
    key: pem('Private key of the client certificate.'),
  },
  { default: {} },
)

type Given = { -readonly [K in 'cert' | 'key' | 'ca']?: string | undefined }

/** What was read, as Node takes it. Undefined: nothing is set. */
export interface TlsFiles {
  readonly cert?: string
  readonly key?: string
  readonly ca?: string
}

/** A sentence about what cannot work; undefined when it can. */
export function tlsProblem({ cert, key, ca, requestClientCert }: Static<typeof ListenerTls>): string | undefined {
  if ((cert === undefined) !== (key === undefined)) return 'has a certificate or a key alone; set both `cert` and `key`'
  if (!requestClientCert) return undefined
  if (cert === undefined) return 'asks for client certificates over plain HTTP; set `cert` and `key`'
  return ca === undefined
    ? 'would accept client certificates of every public authority; set `ca` to your own'
    : undefined
}

/** Reads the files, once. Throws an Error that names the one that cannot be read. */
export function readTls(given: Given): TlsFiles | undefined {
  const { cert, key, ca } = given
  if ((cert === undefined) !== (key === undefined)) throw new Error('tls needs both `cert` and `key`, or none of them')
  const read = Object.entries({ cert, key, ca }).flatMap(([name, value]) =>
    value === undefined ? [] : [[name, value.startsWith('-----BEGIN') ? value : fileOf(name, value)]],
  )
  return read.length === 0 ? undefined : (Object.fromEntries(read) as TlsFiles)
}

function fileOf(name: string, path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (cause) {
    throw new Error(`tls.${name}: ${path} cannot be read (${String((cause as NodeJS.ErrnoException).code)})`, { cause })
  }
}
