import { appError } from '#kernel'

export const unknownSession = appError('not_found', 404, 'No such session.')
export const sessionBusy = appError('session_busy', 409, 'The session is executing a run; cancel the run first.')
