/** Node asks for 512 MiB of address space for code, and for stacks of its threads, and uses next to nothing of it. */
const reservedMb = 640

/**
 * The argument for `prlimit` that bounds what each process can ask for, given what it may use. What it reserves counts, too:
 * with a smaller bound Node does not even start.
 */
export const dataLimit = (memoryMb: number): string => `--data=${(memoryMb + reservedMb) * 1024 * 1024}`
