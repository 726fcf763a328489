import type { App } from '../http/app.ts'

/** In this scope a body is a stream, whatever its content type says: handlers read it while it arrives. */
export function takeStreams(app: App): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request: unknown, body: unknown, done: (error: null, body: unknown) => void) =>
    done(null, body),
  )
}

/** In this scope a body is its bytes, whatever its content type says; `bodyLimit` is that of the listener unless given. */
export function takeBytes(app: App, bodyLimit?: number): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser(
    '*',
    { parseAs: 'buffer', ...(bodyLimit === undefined ? {} : { bodyLimit }) },
    async (_request: unknown, body: Buffer) => body,
  )
}
