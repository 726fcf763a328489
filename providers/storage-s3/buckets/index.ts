import { definePlugin, Duration, Settings } from '#kernel'
import { Buckets, objectErrors } from '#contracts/object-store'
import { S3Backend } from '../backend.ts'
import { S3Client } from '../client.ts'

/** S3 buckets that are named at run time, for example by tenants for their mounts. */
export default definePlugin({
  name: 'storage-buckets',
  config: Settings({
    timeout: Duration(
      '30s',
      'Timeout to connect, for the beginning of a response, and between two parts of an object; anything else may take three as a whole, and an upload a second more for each 64 kB.',
    ),
  }),
  errors: objectErrors,
  provides: { buckets: Buckets },
  async setup({ config: { timeout: timeoutMs }, onStop }) {
    const open = new Set<S3Client>()
    onStop(async () => void (await Promise.all([...open].map((client) => client.close()))))
    return {
      buckets: {
        open({ endpoint, prefix, uploads, ...settings }) {
          const client = new S3Client({
            ...settings,
            endpoint: endpoint ?? `https://s3.${settings.region}.amazonaws.com`,
            timeoutMs,
          })
          open.add(client)
          const backend = new S3Backend(client, () => prefix, uploads)
          return Object.assign(backend, {
            close: () => client.retire().finally(() => open.delete(client)),
          })
        },
      },
    }
  },
})
