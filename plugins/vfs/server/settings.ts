import { isAbsolute } from 'node:path'
import { type StaticDecode, Type } from '@sinclair/typebox'
import { Duration, Settings, Tenants } from '#kernel'
import { isMountName } from '#contracts/vfs'
import { OwnHosts } from '#kit/own-hosts'
import { Arriving } from './arriving.ts'
import { foldersWork } from './folder.ts'

const text = (description: string) => Type.Optional(Type.String({ description }))
const count = (fallback: number, description: string) => Type.Integer({ minimum: 0, default: fallback, description })
const bound = (description: string) => Type.Optional(Type.Integer({ minimum: 0, description }))
const mebi = 1024 * 1024

export const MountSettings = Settings(
  {
    kind: Type.Union([Type.Literal('objects'), Type.Literal('s3'), Type.Literal('folder')], {
      description: 'The tenant’s objects, a bucket of S3, or a folder of this machine.',
    }),
    tenants: Tenants('The tenants that have it.'),
    readOnly: Type.Boolean({ default: false, description: 'The mount is read-only.' }),
    copyOnWrite: Type.Boolean({
      default: false,
      description: 'Changes of a session are visible to it only and are dropped with it, also in a readOnly mount.',
    }),
    path: text('For folder: its path. {tenant} stands for the tenant.'),
    mostBytes: bound(
      'For folder: the bytes that it may have, with those of other programs, before tenants write no more.',
    ),
    mostFiles: bound('For folder: the files, as mostBytes.'),
    prefix: text('For objects and s3: the prefix of the keys, e.g. docs/. {tenant} stands for the tenant.'),
    bucket: text('For s3: the bucket.'),
    endpoint: text('For s3: the URL of the service; AWS in the region by default.'),
    region: Type.String({ default: 'us-east-1', description: 'For s3: the region.' }),
    accessKeyId: text('For s3: the key, or secret://name for the secret of each tenant.'),
    secretAccessKey: text('For s3: the key, or secret://name for the secret of each tenant.'),
  },
  // The default is needed: without it, TypeBox does not look for defaults inside the values of a record.
  { default: {} },
)
export type MountSettings = StaticDecode<typeof MountSettings>

export const serverSettings = Settings({
  dir: Type.Optional(
    Type.String({
      description:
        'Folder of sessions, their files and their audit, written by this server only. Without it nothing is served.',
    }),
  ),
  withoutKey: Type.Union([Type.Literal('fail'), Type.Literal('off')], {
    default: 'fail',
    description: 'Without a key to verify requests, `fail` does not start, and `off` refuses every request.',
  }),
  conductorUrl: text('The internal listener of a conductor, for secrets that mounts refer to.'),
  scratch: Type.String({
    default: 'scratch',
    pattern: '^[a-z0-9][a-z0-9_-]{0,62}$',
    description: 'Name of the mount that is each session’s own.',
  }),
  mounts: Type.Record(Type.String(), MountSettings, { default: {}, description: 'Mounts by name.' }),
  ownMounts: Tenants('The tenants that may have mounts of their own, over their objects or a bucket.', ['*']),
  mostOwnMounts: count(50, 'Mounts of its own that a tenant may have.'),
  ownHosts: OwnHosts(
    'Your own S3 services that mounts of tenants may name although they are private or speak plain http.',
  ),
  fileBytes: count(5 * 1024 * mebi, 'The largest file that is written.'),
  uploadBytes: Type.Optional(
    Type.Integer({
      minimum: 0,
      description:
        'Size of all uploads under way, of which one tenant has at most half. By default four of the largest files.',
    }),
  ),
  sessionBytes: count(1024 * mebi, 'Size of the scratch space and copy-on-write layers of a session.'),
  sessionEntries: count(20_000, 'Files in them, including files that the session deleted from copy-on-write mounts.'),
  requestsAtOnce: count(64, 'Concurrent requests of one tenant; further ones are refused for now.'),
  idle: Duration('7d', 'A session that was unused for this long is closed.'),
  auditFor: Duration('30d', 'How long the audit of a session is kept after its newest entry.'),
  auditBytes: count(
    1024 * mebi,
    'Size of all audits of a tenant, in blocks of 4 KiB; those that were written longest ago are deleted while it fills up.',
  ),
  sweepEvery: Duration('1h', 'How often sessions and audits are looked through.'),
})

type ServerSettings = StaticDecode<typeof serverSettings>

/** The bytes that a tenant may upload at once equal this many of the largest files. Smaller ones are limited by its concurrent requests only. */
const filesAtOnce = 2

/** The uploads under way, with the bounds of this server. Fails the boot with one sentence if the largest file has no room. */
export function arrivingIn({ fileBytes, uploadBytes: most = 4 * fileBytes }: ServerSettings): Arriving {
  if (most < 2 * fileBytes)
    throw new Error(
      '`uploadBytes` leaves no room for the largest file: it needs twice `fileBytes` at least, because a tenant may have half of it',
    )
  return new Arriving(filesAtOnce * fileBytes, most)
}

/** Mounts with which tenants can fill a file system that others use. */
export const mountRisks = (mounts: Readonly<Record<string, MountSettings>>): string[] =>
  Object.entries(mounts).flatMap(([name, { kind, readOnly, mostBytes, mostFiles }]) =>
    kind !== 'folder' || readOnly || (mostBytes !== undefined && mostFiles !== undefined)
      ? []
      : [
          `the mount '${name}' lets tenants fill the file system of its folder; set its mostBytes and mostFiles, or readOnly`,
        ],
  )

/** Fails the boot with one sentence for a mount with a problem that a schema cannot detect. */
export function checkMounts(mounts: Readonly<Record<string, MountSettings>>, scratch: string): void {
  for (const [name, mount] of Object.entries(mounts)) {
    const wrong = problemOf(name, mount, scratch)
    if (wrong) throw new Error(`the mount '${name}' ${wrong}`)
  }
}

function problemOf(name: string, mount: MountSettings, scratch: string): string | undefined {
  const { kind, path, prefix = '', bucket, accessKeyId, secretAccessKey, readOnly, tenants } = mount
  const { mostBytes, mostFiles } = mount
  if (!isMountName(name)) return 'has no name that mounts can have: lower case, digits, _ and -, 63 characters at most'
  if (name === scratch) return 'has the name of the scratch space; call it, or `scratch`, something else'
  if (kind === 'folder') {
    if (!path || !isAbsolute(path)) return 'needs `path`, from the root of the file system'
    if (!foldersWork)
      return 'is a folder, which is only for Linux: elsewhere nothing keeps links from leading out of it'
  }
  if (kind !== 'folder' && (mostBytes ?? mostFiles) !== undefined)
    return 'has `mostBytes` or `mostFiles`, which bound folders only'
  if (kind === 's3' && (!bucket || !accessKeyId || !secretAccessKey)) {
    return 'needs `bucket`, `accessKeyId` and `secretAccessKey`'
  }
  const place = kind === 'folder' ? (path ?? '') : prefix
  // The object store separates the objects of tenants by itself.
  const isShared = kind !== 'objects' && !place.includes('{tenant}') && !tenants.isApart
  if (isShared && !readOnly) {
    return `would be written by several tenants, who would read each other's files: put {tenant} into its ${kind === 'folder' ? 'path' : 'prefix'}, name one tenant, or make it readOnly`
  }
  return undefined
}
