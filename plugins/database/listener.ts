import type { FastifyBaseLogger } from 'fastify'
import pg from 'pg'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import { databaseAway, isServerAway } from './errors.ts'

const firstPauseMs = 100
const longestPauseMs = 5_000

export interface Listener {
  readonly listen: Database['listen']
  close(): Promise<void>
}

/** LISTEN on one dedicated connection, opened at first use and again when it breaks: pooled ones would miss notifications. */
export function createListener(dsn: string, log: FastifyBaseLogger): Listener {
  const channels = new Map<string, Set<(payload: string) => void>>()
  let connecting: Promise<pg.Client> | undefined
  let retry: NodeJS.Timeout | undefined
  let pauseMs = firstPauseMs
  let closed = false
  let turn: Promise<unknown> = Promise.resolve()

  /** One command after the other: pg takes no second one while the first is under way. */
  const command = (client: pg.Client, verb: string, channel: string): Promise<unknown> =>
    (turn = turn.catch(() => {}).then(() => client.query(`${verb} ${pg.escapeIdentifier(channel)}`)))

  const open = async (): Promise<pg.Client> => {
    const client = new pg.Client({
      connectionString: dsn,
      application_name: 'agent-orc listen',
      keepAlive: true,
      connectionTimeoutMillis: 5_000,
    })
    client.on('error', () => {})
    client.on('notification', ({ channel, payload = '' }) => {
      for (const listener of channels.get(channel) ?? []) listener(payload)
    })
    try {
      await client.connect()
      for (const channel of channels.keys()) await command(client, 'LISTEN', channel)
    } catch (error) {
      await client.end().catch(() => {})
      throw error
    }
    client.once('end', broken)
    pauseMs = firstPauseMs
    return client
  }
  const connected = (): Promise<pg.Client> =>
    (connecting ??= open().catch((error: unknown) => {
      connecting = undefined
      throw databaseAway(error)
    }))
  const broken = (): void => {
    connecting = undefined
    if (closed) return
    log.warn(`the connection for notifications broke; trying again in ${pauseMs} ms`)
    clearTimeout(retry)
    retry = setTimeout(() => void connected().catch(broken), pauseMs)
    pauseMs = Math.min(pauseMs * 2, longestPauseMs)
  }

  return {
    async listen(channel, listener) {
      // A function of its own for each call: the same listener may be given twice.
      const own = (payload: string): void => listener(payload)
      const listeners = channels.get(channel) ?? new Set()
      channels.set(channel, listeners.add(own))
      const stop = async (): Promise<void> => {
        listeners.delete(own)
        if (listeners.size > 0 || channels.get(channel) !== listeners) return
        channels.delete(channel)
        const client = await connecting?.catch(() => undefined)
        // Somebody may have asked for the channel again meanwhile.
        if (client && !channels.has(channel)) await command(client, 'UNLISTEN', channel).catch(() => {})
      }
      try {
        // Harmless when `open` has done it already; needed on a connection that was there before this channel.
        await command(await connected(), 'LISTEN', channel)
      } catch (error) {
        if (!isAppError(error) && !isServerAway(error)) {
          await stop()
          throw error
        }
        // The channel is listened to as soon as the server is there; what is notified until then is lost, as in any outage.
        if (!connecting) broken()
      }
      return stop
    },
    async close() {
      closed = true
      clearTimeout(retry)
      const client = await connecting?.catch(() => undefined)
      await client?.end()
    },
  }
}
