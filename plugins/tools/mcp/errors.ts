import { errorTable } from '#kernel'

/** What is refused before JSON-RPC; what a call of a tool comes to is told in its terms: -32602 and -32603. */
export const sessionMcpErrors = errorTable('session-mcp', {
  unknownSession: { status: 404, about: 'The session is none of this runner, has failed or was shut down.' },
  methodNotAllowed: { status: 405, message: 'This endpoint keeps no streams: send POST.' },
})
