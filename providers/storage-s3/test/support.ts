import { randomUUID } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { maxKeyBytes } from '#contracts/object-store'
import { S3Backend } from '../backend.ts'
import { S3Client, type S3Settings } from '../client.ts'

const prefixOf = (name: string): string => `some/prefix/${name}`
/** What is left of a key for the tenant with the longest id in the suite. */
export const keyBytes = maxKeyBytes - `${prefixOf(randomUUID())}/acme-2/`.length

/** A backend below a prefix of its own, with the folder in which its uploads wait. */
export async function backendFor(t: TestContext, settings: S3Settings): Promise<{ store: S3Backend; dir: string }> {
  const client = new S3Client(settings)
  t.after(() => client.close())
  const dir = await mkdtemp(join(tmpdir(), 'ao-s3-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const prefix = prefixOf(randomUUID())
  return { store: new S3Backend(client, (tenantId) => `${prefix}/${tenantId}/`, dir), dir }
}
