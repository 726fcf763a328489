export interface FakeE2bOptions {
  readonly apiKey: string
  readonly templates: Readonly<Record<string, { cpuCount: number; memoryMB: number; diskSizeMB: number }>>
  /** Lists that a new sandbox is not in yet. */
  readonly listLag: number
  /** Requests to a sandbox that just began which do not reach it yet. */
  readonly routeLag: number
}

/** Undefined for what is no JSON. */
export function parse(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString('utf8')) as unknown
  } catch {
    return undefined
  }
}
