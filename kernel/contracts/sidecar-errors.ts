import { errorTable } from './errors.ts'

/** Errors that the host of runtimes answers to runners. A run that has begun gets them as its `error` event. */
export const sidecarErrors = errorTable('run-host', {
  unknownRuntime: { status: 400, about: 'This sidecar does not serve the runtime.' },
  unknownModel: {
    status: 400,
    about: 'The tenant may not use models of this provider; the sentence lists those that it may use.',
  },
  runtimeRequired: { status: 400, message: 'Name the runtime: ?runtime=NAME.' },
  invalidSessionId: { code: 'invalid session id', status: 400, about: 'The session id is not one of ours.' },
  stateNotSupported: { status: 400, message: 'This runtime has no state that can be exported or restored.' },
  invalidState: {
    status: 400,
    message: 'The body is empty.',
    about: 'The bundle is empty, or the runtime cannot read it.',
  },
  hostNotAllowed: { status: 403, about: "The run names a host that is not in this sidecar's list of allowed hosts." },
  notFound: { status: 404, message: 'This session has no state here.' },
  sessionBusy: { status: 409, retry: 'later', message: 'A run of this session is still running.' },
  sessionStateMissing: {
    status: 409,
    message: 'The conversation of this session is not here: hydrate it first.',
  },
  sidecarDraining: { status: 503, retry: true, message: 'The sidecar is about to stop and accepts nothing new.' },
  attachmentUnread: {
    status: 502,
    message: 'An attachment could not be read from the runner.',
  },
  runtimeError: {
    status: 502,
    about: 'The runtime failed, or sent something that is not an event; the log says more.',
  },
  sidecarError: { status: 502, message: 'The run failed.', about: 'The sidecar ended the run without saying why.' },
})
