import { errorTable } from '#kernel'

/** Strings with spaces are those of specification 4.7. An answer for another tenant's session, too: a caller cannot tell them apart. */
export const sessionErrors = errorTable('sessions', {
  notFound: { status: 404, message: 'No such session.' },
  noSandboxWorker: { code: 'no sandbox worker', status: 404, message: 'This session has no sandbox worker.' },
  noVfsSession: { code: 'no vfs session', status: 404, message: 'This session has no VirtualFS lease.' },
  sessionBusy: {
    status: 409,
    retry: 'later',
    message: 'The session is executing a run; cancel the run first.',
  },
  upstream: { status: 502, retry: true, message: "The session's runner did not answer; try again." },
})
