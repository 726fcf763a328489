import type { Socket } from 'node:net'
import fp from 'fastify-plugin'

/**
 * When the listener closes, ends connections that carry no request: kept-alive ones, and those that never sent a whole
 * request, which Node counts as busy for up to 72 s.
 */
export const quietConnections = fp(
  async (app) => {
    const { server } = app
    const quiet = new Set<Socket>()
    server.on('connection', (socket: Socket) => {
      quiet.add(socket)
      socket.once('close', () => quiet.delete(socket))
    })
    // It is somebody else's from now on, who ends it.
    server.on('upgrade', ({ socket }) => quiet.delete(socket))
    server.on('request', ({ socket }, response) => {
      quiet.delete(socket)
      response.once('close', () => {
        if (!socket.destroyed) quiet.add(socket)
      })
    })
    const endAll = (): void => quiet.forEach((socket) => socket.destroy())
    app.addHook('preClose', async () => {
      endAll()
      const sweep = setInterval(endAll, 50)
      server.once('close', () => clearInterval(sweep))
      if (!server.listening) clearInterval(sweep)
    })
  },
  { name: 'agent-orc-connections' },
)
