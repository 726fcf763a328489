/**
 * A filter for system calls. It closes two ways out that namespaces leave open: address families that no network namespace
 * isolates (AF_VSOCK reaches the hypervisor of a virtual machine), and parts of the kernel that no worker needs and that
 * had escapes before.
 */
export function filterFor(arch: string): Buffer | undefined {
  const machine = machines[arch]
  if (!machine) return undefined
  const denied = Object.entries(calls).flatMap(([name, numbers]) => {
    const number = numbers[machine.column]
    // libuv probes for io_uring and continues without it, so those calls fail instead of killing the process.
    return number === undefined ? [] : [...on(number, refuse(name.startsWith('io_uring') ? ENOSYS : EPERM))]
  })
  const families = allowedFamilies.flatMap((family) => on(family, [ret(ALLOW)]))
  const socket = [load(firstArgument), ...families, ret(ERRNO | EAFNOSUPPORT)]
  const prctl = [load(firstArgument), ...on(setDeathSignal, [...onlyKill, ret(ERRNO | EPERM)]), ret(ALLOW)]
  const program = [
    load(architecture),
    ...unless(machine.audit, [ret(KILL)]),
    load(callNumber),
    // On x86-64 the same calls have a second range of numbers (x32). A call from that range kills the process.
    ...(arch === 'x64' ? [jump(JGE, x32Bit, 0, 1), ret(KILL)] : []),
    ...denied,
    ...machine.socket.flatMap((number) => on(number, socket)),
    ...on(machine.prctl, prctl),
    ret(ALLOW),
  ]
  return Buffer.concat(program)
}

interface Machine {
  readonly column: 0 | 1
  readonly audit: number
  /** The numbers of `socket` and `socketpair`. */
  readonly socket: readonly number[]
  readonly prctl: number
}
const machines: Readonly<Record<string, Machine>> = {
  x64: { column: 0, audit: 0xc000003e, socket: [41, 53], prctl: 157 },
  arm64: { column: 1, audit: 0xc00000b7, socket: [198, 199], prctl: 167 },
}

/** System call numbers on x86-64 and on ARM64, from the kernel's headers (asm/unistd_64.h, asm-generic/unistd.h). */
const calls: Readonly<Record<string, readonly [number | undefined, number | undefined]>> = {
  // All processes of a user share keys and key rings.
  add_key: [248, 217],
  request_key: [249, 218],
  keyctl: [250, 219],
  // Programs in the kernel, the kernel's counters and its log.
  bpf: [321, 280],
  perf_event_open: [298, 241],
  syslog: [103, 116],
  userfaultfd: [323, 282],
  io_uring_setup: [425, 425],
  io_uring_enter: [426, 426],
  io_uring_register: [427, 427],
  // New namespaces and mounts need privileges that no worker has. The filter refuses them even to a process that gained such privileges.
  unshare: [272, 97],
  setns: [308, 268],
  mount: [165, 40],
  umount2: [166, 39],
  pivot_root: [155, 41],
  open_tree: [428, 428],
  move_mount: [429, 429],
  fsopen: [430, 430],
  fsconfig: [431, 431],
  fsmount: [432, 432],
  fspick: [433, 433],
  mount_setattr: [442, 442],
  name_to_handle_at: [303, 264],
  open_by_handle_at: [304, 265],
  // Calls that affect the machine itself.
  kexec_load: [246, 104],
  kexec_file_load: [320, 294],
  init_module: [175, 105],
  finit_module: [313, 273],
  delete_module: [176, 106],
  reboot: [169, 142],
  swapon: [167, 224],
  swapoff: [168, 225],
  acct: [163, 89],
  quotactl: [179, 60],
  iopl: [172, undefined],
  ioperm: [173, undefined],
}

// linux/prctl.h: PR_SET_PDEATHSIG
const setDeathSignal = 1
const SIGKILL = 9

/** AF_UNIX, AF_INET, AF_INET6, and AF_NETLINK, through which programs list the addresses of their machine. */
const allowedFamilies = [1, 2, 10, 16]

const EPERM = 1
const ENOSYS = 38
const EAFNOSUPPORT = 97
const x32Bit = 0x40000000

// linux/seccomp.h and linux/bpf_common.h
const ALLOW = 0x7fff0000
const ERRNO = 0x00050000
const KILL = 0x80000000
const LOAD = 0x20
const JEQ = 0x15
const JGE = 0x35
const RETURN = 0x06
// Offsets in struct seccomp_data. Only the lower half of the argument is loaded, because an address family is an int.
const callNumber = 0
const architecture = 4
const firstArgument = 16
const secondArgument = 24

/** A struct sock_filter. Every machine in the list above is little-endian. */
function instruction(code: number, k: number, jt = 0, jf = 0): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeUInt16LE(code, 0)
  bytes.writeUInt8(jt, 2)
  bytes.writeUInt8(jf, 3)
  bytes.writeUInt32LE(k, 4)
  return bytes
}
const load = (offset: number): Buffer => instruction(LOAD, offset)
const ret = (verdict: number): Buffer => instruction(RETURN, verdict >>> 0)
const refuse = (errno: number): Buffer[] => [ret(ERRNO | errno)]
const jump = (code: number, k: number, jt: number, jf: number): Buffer => instruction(code, k, jt, jf)
/** Runs `then` when the loaded word is `value`. */
const on = (value: number, then: readonly Buffer[]): Buffer[] => [jump(JEQ, value, 0, then.length), ...then]
/**
 * Allows only SIGKILL as the parent-death signal. The first process of a sandbox dies with bwrap outside (PR_SET_PDEATHSIG), and all others die
 * with it. A process of the same user could trace the first one, make it unset the signal, and so survive the end of its sandbox.
 */
const onlyKill = [load(secondArgument), ...on(SIGKILL, [ret(ALLOW)])]
const unless = (value: number, then: readonly Buffer[]): Buffer[] => [jump(JEQ, value, then.length, 0), ...then]
