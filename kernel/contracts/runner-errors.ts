import { errorTable } from './errors.ts'

/** Errors that a runner answers to conductors. Codes with spaces are those of specification 4.22. */
export const runnerErrors = errorTable('runner', {
  invalidSessionId: { code: 'invalid session id', status: 400, about: 'The session id is not one of ours.' },
  toolNotAllowed: { status: 403, about: 'The tool is not in the toolkit of the session.' },
  hostNotAllowed: {
    status: 403,
    about: "The run names an MCP server on a host that is not in this runner's list of allowed hosts.",
  },
  unknownProfile: { status: 404, about: 'The profile was never broadcast to this runner.' },
  /** Another tenant's session gets the same answer, so that a caller cannot tell the two apart. */
  unknownSession: {
    status: 404,
    about: 'The session is not in the memory of this runner, or belongs to another tenant: hydrate it.',
  },
  unknownRun: { status: 404, about: 'The runner does not execute the run and does not keep its events.' },
  noState: { status: 404, message: 'The session has no state to export.' },
  noVfsSession: { code: 'no vfs session', status: 404, about: 'The session has no VirtualFS lease.' },
  noSandboxWorker: { code: 'no sandbox worker', status: 404, about: 'The session has no sandbox worker.' },
  sessionBusy: { status: 409, retry: 'later', message: 'A run of this session is running.' },
  skillsMissing: {
    status: 409,
    about:
      "This runner lacks versions of the session's skills; `digests` names them. Send them and repeat the request.",
  },
  /** The conductor then sends the attachments themselves. */
  linksUnread: {
    status: 409,
    message: 'This runner cannot read the linked attachments of the run: it has another object store, or none.',
  },
  attemptSuperseded: {
    status: 409,
    message: 'A later attempt of this run was started, or its session was taken over.',
  },
  runGap: { status: 410, message: 'The events after this one are no longer kept.' },
  tooManySessionRequests: {
    status: 429,
    retry: true,
    message:
      'A session may have at most 128 requests to its tools, and as many results, under way at a runner, with bodies of 4 MiB, and a tenant 2,000 with 32 MiB; repeat this one when another has ended.',
  },
  stateExportFailed: {
    status: 500,
    message: 'The sidecar did not give the state out.',
    about: 'The sidecar did not export the state, or it is larger than 64 MiB.',
  },
  /** Specification 7: a substrate that does not answer is an upstream failure, whatever code the provider gave it. */
  upstream: {
    status: 502,
    retry: 'later',
    message: 'The sandbox provider does not answer; try again.',
  },
  runnerFull: { status: 503, retry: true, message: 'Every session of this runner has a running run.' },
  /** Nothing was begun here, so another runner may be asked. */
  runnerDraining: { status: 503, retry: true, message: 'The runner is about to stop and accepts nothing new.' },
  skillsNotKept: { status: 503, message: 'The session has skills, and this runner has no plugin for skills.' },
  noSandboxSubstrate: { status: 503, message: 'This runner has no sandboxes.' },
})

/** Failures between a runner and its sidecars. */
export const sidecarLinkErrors = errorTable('sidecar-links', {
  /** Nothing of the request was executed, so it may be sent again. */
  sidecarUnreachable: { status: 503, retry: 'as-said', message: 'The sidecar cannot be reached.' },
  sidecarLost: { status: 502, message: 'The connection to the sidecar was lost.' },
  sidecarRefused: { status: 502, about: 'The sidecar answered with an error in an unknown form.' },
  runtimeUnavailable: { status: 503, about: 'No sidecar is configured for the runtime.' },
  /** A sidecar may lack the state routes, but state that is sent to it must not be lost silently. Specification 4.23, rule 2. */
  sidecarKeepsNoState: { status: 502, message: 'The sidecar has no routes for state.' },
  stateTooLarge: { status: 500, message: "The session's state is larger than 64 MiB." },
})
