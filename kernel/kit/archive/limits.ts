export interface ArchiveLimits {
  /** Bytes of the archive as it travels. */
  readonly packedBytes: number
  /** Bytes of the tar inside it. */
  readonly unpackedBytes: number
  readonly entries: number
}

export const archiveLimits: ArchiveLimits = {
  // What a runner takes of one session (specification 4.22).
  packedBytes: 64 * 1024 * 1024,
  unpackedBytes: 256 * 1024 * 1024,
  entries: 10_000,
}
