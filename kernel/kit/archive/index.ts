// A library of its own: the files of a session as one gzip tar, for runtimes whose vendor keeps conversations in files.
export { invalidState, stateTooLarge } from './errors.ts'
export { type ArchiveLimits, archiveLimits } from './limits.ts'
export { pack, type PackedFile } from './pack.ts'
export { unpack } from './unpack.ts'
