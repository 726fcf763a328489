import { errorTable } from './errors.ts'

/** What a runner answers to conductors. Strings with spaces are those of specification 4.22. */
export const runnerErrors = errorTable('runner', {
  invalidSessionId: { code: 'invalid session id', status: 400, about: 'The session id is not one of ours.' },
  toolNotAllowed: { status: 403, about: 'The tool is not in the toolkit of the session.' },
  hostNotAllowed: { status: 403, about: 'The run names an MCP server on a host that this runner was not told of.' },
  unknownProfile: { status: 404, about: 'The profile was never broadcast to this runner.' },
  /** Also the answer for another tenant's session: a caller cannot tell the two apart. */
  unknownSession: {
    status: 404,
    about: "The session is not in the memory of this runner, or another tenant's: hydrate it.",
  },
  unknownRun: { status: 404, about: 'The runner neither executes the run nor keeps its events.' },
  noState: { status: 404, message: 'The session has no state to export.' },
  noVfsSession: { code: 'no vfs session', status: 404, about: 'The session has no VirtualFS lease.' },
  noSandboxWorker: { code: 'no sandbox worker', status: 404, about: 'The session has no sandbox worker.' },
  sessionBusy: { status: 409, retry: 'later', message: 'A run is under way in this session.' },
  skillsMissing: {
    status: 409,
    about:
      'The session has skills of which this runner lacks versions; `digests` names them. Bring them and ask again.',
  },
  /** The conductor sends the attachments themselves then. */
  linksUnread: {
    status: 409,
    message:
      'This runner cannot read the linked attachments of the run: its object store is another one, or it has none.',
  },
  attemptSuperseded: { status: 409, message: 'A later attempt of this run was begun, or its session was taken over.' },
  runGap: { status: 410, message: 'What follows this event of the run is not kept any more.' },
  stateExportFailed: {
    status: 500,
    message: 'The sidecar did not give the state out.',
    about: 'The sidecar did not give the state out, or it is larger than 64 MiB.',
  },
  /** Specification 7: a substrate that does not answer is an upstream failure, whatever code the provider gave it. */
  upstream: {
    status: 502,
    retry: 'later',
    message: 'The substrate of the sandbox does not answer; try again.',
  },
  runnerFull: { status: 503, retry: true, message: 'Every session of this runner has a run under way.' },
  /** Another runner may be asked: nothing was begun here. */
  runnerDraining: { status: 503, retry: true, message: 'The runner is about to stop and takes nothing new.' },
  skillsNotKept: { status: 503, message: 'The session has skills, and this runner has no plugin that keeps any.' },
  noSandboxSubstrate: { status: 503, message: 'This runner has no sandboxes.' },
})

/** What goes wrong between a runner and its sidecars. */
export const sidecarLinkErrors = errorTable('sidecar-links', {
  /** Nothing of the request was executed, so it may be sent again. */
  sidecarUnreachable: { status: 503, retry: 'as-said', message: 'The sidecar cannot be reached.' },
  sidecarLost: { status: 502, message: 'The connection to the sidecar was lost.' },
  sidecarRefused: { status: 502, about: 'The sidecar answered with an error of no form that is known here.' },
  runtimeUnavailable: { status: 503, about: 'No sidecar is configured for the runtime.' },
  /** A sidecar need not have the state routes, but then a state given to it must not be lost in silence. Specification 4.23, rule 2. */
  sidecarKeepsNoState: { status: 502, message: 'The sidecar has no routes for state.' },
  stateTooLarge: { status: 500, message: "The session's state is larger than 64 MiB." },
})
