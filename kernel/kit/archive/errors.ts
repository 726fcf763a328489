import { appError } from '#kernel'

/** The archive came from outside: whatever is wrong with it is the sender's. */
export const invalidState = appError('invalid_state', 400, 'The body is not a state bundle that this runtime wrote.')
export const stateTooLarge = appError('state_too_large', 500, "The session's state is larger than a bundle may be.")
