import type { App } from '#kernel'
import { leaving, type RunnerService } from '#contracts/runner'
import { runnerWire, tenantHeader } from '#contracts/wire/runner'
import { begun, serve } from '#kit'

export function runRoutes(app: App, core: RunnerService): void {
  // The first line is the runner's own and comes at once; a refusal comes instead of it, while a status can still be sent.
  serve(app, runnerWire.execute, async ({ headers, body, signal }) => ({
    lines: await begun(core.execute(headers[tenantHeader], body, body.keepMs ? left(signal) : signal)),
  }))

  serve(app, runnerWire.attach, async ({ headers, body, signal }) => ({
    lines: await begun(core.attach(headers[tenantHeader], body, left(signal))),
  }))

  serve(app, runnerWire.cancelRun, ({ headers, params }) => core.cancelRun(headers[tenantHeader], params.runId))
}

/** Of a run that is kept: a reader whose connection is gone leaves it to another one. Who wants it to end says so. */
function left(signal: AbortSignal): AbortSignal {
  const reader = new AbortController()
  const pass = (): void => reader.abort(signal.reason === 'client_gone' ? leaving : signal.reason)
  if (signal.aborted) pass()
  else signal.addEventListener('abort', pass, { once: true })
  return reader.signal
}
