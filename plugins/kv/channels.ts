import type { FastifyBaseLogger } from 'fastify'

type Listener = (message: string) => void

/** Who listens to which channel in this process. */
export interface Channels {
  /** Returns the way back, which tells whether nobody is left. */
  add(channel: string, listener: Listener): () => boolean
  has(channel: string): boolean
  names(): string[]
  readonly size: number
  deliver(channel: string, message: string): void
}

export function createChannels(log: FastifyBaseLogger): Channels {
  const channels = new Map<string, Set<Listener>>()
  return {
    add(channel, listener) {
      // A function of its own for each call: the same listener may subscribe twice.
      const own: Listener = (message) => listener(message)
      const listeners = channels.get(channel) ?? new Set()
      channels.set(channel, listeners.add(own))
      return () => {
        listeners.delete(own)
        if (listeners.size > 0 || channels.get(channel) !== listeners) return false
        return channels.delete(channel)
      }
    },
    has: (channel) => channels.has(channel),
    names: () => [...channels.keys()],
    get size() {
      return channels.size
    },
    deliver(channel, message) {
      for (const listener of channels.get(channel) ?? []) {
        try {
          listener(message)
        } catch (error) {
          log.error({ err: error, channel }, 'a subscriber failed')
        }
      }
    },
  }
}
