import { type AppError, isAppError } from '#kernel'
import { workerErrors } from '../errors.ts'

// These sentences are written for a model.
export const outside = (path: string): AppError =>
  workerErrors.outsideWorkspace({ message: `'${path}' is not inside the workspace.` })
export const refused = (message: string, cause?: unknown): AppError => workerErrors.toolRefused({ message, cause })

const reasons: Readonly<Record<string, string>> = {
  ENOENT: 'is not there',
  EACCES: 'may not be used',
  EPERM: 'may not be used',
  EISDIR: 'is a folder',
  ENOTDIR: 'goes through a file as if it were a folder',
  EEXIST: 'goes through a file as if it were a folder',
  ELOOP: 'is a link',
  ENXIO: 'is no regular file',
  ENAMETOOLONG: 'is too long a name',
  EROFS: 'cannot be changed: the disk is read-only',
  ENOSPC: 'cannot be written: the disk is full',
  EDQUOT: 'cannot be written: the disk is full',
}

/** Rewords an error of the file system for the path that was given. Any other error is returned unchanged. */
export function explained(path: string, error: unknown): unknown {
  if (isAppError(error)) return error
  const reason = reasons[(error as NodeJS.ErrnoException)?.code ?? '']
  return reason === undefined ? error : refused(`'${path}' ${reason}.`, error)
}
