import type { FastifyBaseLogger } from 'fastify'
import pg from 'pg'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import { databaseAway, isServerAway } from './errors.ts'

const firstPauseMs = 100
const longestPauseMs = 5_000

/** LISTEN on one dedicated connection, because pooled ones would miss notifications. It is opened at first use, and again when it breaks. */
export class NotificationListener {
  readonly #dsn: string
  readonly #log: FastifyBaseLogger
  readonly #channels = new Map<string, Set<(payload: string) => void>>()
  #connecting: Promise<pg.Client> | undefined
  #retry: NodeJS.Timeout | undefined
  #pauseMs = firstPauseMs
  #closed = false
  #turn: Promise<unknown> = Promise.resolve()

  constructor(dsn: string, log: FastifyBaseLogger) {
    this.#dsn = dsn
    this.#log = log
  }

  readonly listen: Database['listen'] = async (channel, listener) => {
    const channels = this.#channels
    // Each call wraps its listener in a new function, because the same listener may be given twice.
    const own = (payload: string): void => listener(payload)
    const listeners = channels.get(channel) ?? new Set()
    channels.set(channel, listeners.add(own))
    const stop = async (): Promise<void> => {
      listeners.delete(own)
      if (listeners.size > 0 || channels.get(channel) !== listeners) return
      channels.delete(channel)
      const client = await this.#connecting?.catch(() => undefined)
      // The channel may have been requested again in the meantime.
      if (client && !channels.has(channel)) await this.#command(client, 'UNLISTEN', channel).catch(() => {})
    }
    try {
      // A connection that was already open does not listen to this channel yet. After a new `open` the second LISTEN is harmless.
      await this.#command(await this.#connected(), 'LISTEN', channel)
    } catch (error) {
      if (!isAppError(error) && !isServerAway(error)) {
        await stop()
        throw error
      }
      // LISTEN is sent as soon as the server can be reached. Earlier notifications are lost, as in any outage.
      if (!this.#connecting) this.#broken()
    }
    return stop
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#retry)
    const client = await this.#connecting?.catch(() => undefined)
    await client?.end()
  }

  /** Runs one command at a time, because pg accepts no second one while the first is under way. */
  #command(client: pg.Client, verb: string, channel: string): Promise<unknown> {
    const send = () => client.query(`${verb} ${pg.escapeIdentifier(channel)}`)
    return (this.#turn = this.#turn.catch(() => {}).then(send))
  }

  #connected(): Promise<pg.Client> {
    return (this.#connecting ??= this.#open().catch((error: unknown) => {
      this.#connecting = undefined
      throw databaseAway(error)
    }))
  }

  async #open(): Promise<pg.Client> {
    const client = new pg.Client({
      connectionString: this.#dsn,
      application_name: 'agent-orc listen',
      keepAlive: true,
      connectionTimeoutMillis: 5_000,
    })
    client.on('error', () => {})
    client.on('notification', ({ channel, payload = '' }) => {
      for (const listener of this.#channels.get(channel) ?? []) listener(payload)
    })
    try {
      await client.connect()
      for (const channel of this.#channels.keys()) await this.#command(client, 'LISTEN', channel)
    } catch (error) {
      await client.end().catch(() => {})
      throw error
    }
    client.once('end', this.#broken)
    this.#pauseMs = firstPauseMs
    return client
  }

  readonly #broken = (): void => {
    this.#connecting = undefined
    if (this.#closed) return
    this.#log.warn(`the connection for notifications broke; trying again in ${this.#pauseMs} ms`)
    clearTimeout(this.#retry)
    this.#retry = setTimeout(() => void this.#connected().catch(this.#broken), this.#pauseMs)
    this.#pauseMs = Math.min(this.#pauseMs * 2, longestPauseMs)
  }
}
