import { readFile } from 'node:fs/promises'
import { callbackify } from 'node:util'
import { Agent, buildConnector, type Dispatcher } from 'undici'

export interface ClusterAccess {
  readonly dispatcher: Dispatcher
  /** For the header of one request. */
  token(): Promise<string>
}

export interface ClusterOptions {
  /** Instead of the file. */
  readonly token?: string | undefined
  readonly tokenFile: string
  /** The system's authorities where this file is not there. */
  readonly caFile: string
}

/**
 * The way to an API server. Kubernetes replaces the token of a pod about every hour, and now and then the authority: both are
 * read when they are needed.
 */
export function createClusterAccess({ token, tokenFile, caFile }: ClusterOptions): ClusterAccess {
  const connectorOf = async (): Promise<buildConnector.connector> => {
    const ca = await readFile(caFile, 'utf8').catch((error: { code?: unknown }) => {
      if (error.code === 'ENOENT') return undefined
      throw error
    })
    return buildConnector(ca === undefined ? {} : { ca })
  }
  const withConnector = callbackify(connectorOf)
  const connect: buildConnector.connector = (target, done) =>
    withConnector((error, connector) => (error ? done(error, null) : connector(target, done)))
  return {
    dispatcher: new Agent({ connect }),
    token: async () => token ?? (await readFile(tokenFile, 'utf8')).trim(),
  }
}
