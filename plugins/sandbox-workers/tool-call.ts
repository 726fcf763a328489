import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { ToolResult } from '#contracts/tools'
import type { SandboxWorkers } from '#contracts/workers'
import type { WorkerTable } from './table.ts'
import { unlessAborted } from './waiting.ts'

const failed = (content: string): ToolResult => ({ ok: false, content })

/** Executes tools in the sandboxes of sessions, which are started when they are used first. */
export const createToolCall =
  (table: WorkerTable, log: FastifyBaseLogger): SandboxWorkers['callTool'] =>
  async (session, name, input, options) => {
    const { workerMode, sandbox: wish } = session.profile
    if (workerMode !== 'sandbox' && wish === undefined) return failed('This session has no sandbox.')
    const worker = table.of(session)
    const leave = worker.uses.use()
    try {
      const { sandbox } = await unlessAborted(worker.ready(), options.signal)
      return await sandbox.channel.callTool(name, input, options)
    } catch (err) {
      if (options.signal.aborted) return failed('The call was cancelled.')
      log.warn({ err, sessionId: session.id, tool: name }, 'a tool found no sandbox')
      return failed((isAppError(err) && err.sentence) || 'The sandbox of this session could not be started.')
    } finally {
      leave()
    }
  }
