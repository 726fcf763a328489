import { tmpdir } from 'node:os'
import { Type } from '@sinclair/typebox'
import { Duration, Settings } from '#kernel'
import { defineObjectBackend } from '#contracts/object-store'
import { S3Backend } from './backend.ts'
import { S3Client } from './client.ts'

const text = (description: string) => Type.Optional(Type.String({ description }))

/** Objects in a bucket of S3, or of a service with its API. */
export default defineObjectBackend({
  name: 's3',
  config: Settings({
    bucket: text('The bucket, AGENT_ORC_S3_BUCKET. Without it this backend is off.'),
    endpoint: text('The URL of the service; AWS in the region by default.'),
    region: Type.String({ default: 'us-east-1', description: 'Of the bucket, and of signatures.' }),
    prefix: Type.String({ default: '', description: 'The prefix of all keys in the bucket, e.g. agent-orc/.' }),
    accessKeyId: text('Part of the key that signs requests.'),
    secretAccessKey: text('Part of the key that signs requests.'),
    sessionToken: text('The session token of a temporary key.'),
    timeout: Duration(
      '30s',
      'Timeout to connect, for the beginning of a response, and between two parts of an object; anything else may take three as a whole, and an upload a second more for each 64 kB.',
    ),
    dir: text('Folder for incomplete uploads; by default the temporary folder of the system.'),
  }),
  async create({ config, log, onStart, onStop }) {
    const { bucket, endpoint, region, prefix, accessKeyId, secretAccessKey, sessionToken, timeout, dir } = config
    if (!bucket) return undefined
    if (!accessKeyId || !secretAccessKey) {
      throw new Error(
        'storage-s3 needs accessKeyId and secretAccessKey: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY',
      )
    }
    const client = new S3Client({
      endpoint: endpoint || `https://s3.${region}.amazonaws.com`,
      region,
      bucket,
      accessKeyId,
      secretAccessKey,
      sessionToken,
      timeoutMs: timeout,
    })
    onStop(() => client.close())
    const backend = new S3Backend(client, (tenantId) => `${prefix}${tenantId}/`, dir || tmpdir())
    onStart(async () => {
      await backend.tidy().catch((err: unknown) => log.warn({ err }, 'old uploads could not be cleared'))
    })
    return backend
  },
})
