import { randomBytes } from 'node:crypto'
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'

/** Secrets that are made once per data directory, so that keys given out yesterday work today. */
export interface DevSecrets {
  readonly pepper: string
  readonly signingKey: string
  readonly webhookKey: string
  readonly workerKey: string
  readonly masterKey: string
  readonly vfsKey: string
}

/** `api.md`, "Ready line": what another program needs to use a development server. */
export interface ReadyLine {
  readonly ready: true
  readonly conductorUrl: string
  readonly gatewayUrl: string
  readonly runnerUrl: string
  readonly sidecarUrl: string
  readonly internalUrl: string
  readonly tenant: string
  readonly apiKey: string
  readonly agents: readonly DevAgent[]
  readonly bootMs: number
}

export interface DevAgent {
  readonly profile: string
  readonly slug: string
  readonly chatUrl: string
  readonly key: string
}

/** The folder in which `agent-orc dev` keeps everything it writes. */
interface DevData {
  readonly folder: string
  secrets(): Promise<DevSecrets>
  lastReady(): Promise<ReadyLine | undefined>
  saveReady(line: ReadyLine): Promise<void>
}

export function devData(folder: string): DevData {
  const path = resolve(folder)
  const file = (name: string): string => join(path, name)
  return {
    folder: path,
    async secrets() {
      await mkdir(path, { recursive: true, mode: 0o700 })
      const kept = await readJson<Partial<DevSecrets>>(file('secrets.json'))
      const random = (): string => randomBytes(32).toString('base64')
      const made: DevSecrets = {
        pepper: random(),
        signingKey: random(),
        webhookKey: random(),
        workerKey: random(),
        masterKey: random(),
        vfsKey: random(),
      }
      // A folder of an earlier release has fewer secrets: those it has are kept.
      const all = { ...made, ...kept }
      if (Object.keys(all).length > Object.keys(kept ?? {}).length) await writeJson(file('secrets.json'), all)
      return all
    },
    lastReady: () => readJson<ReadyLine>(file('ready.json')),
    saveReady: (line) => writeJson(file('ready.json'), line),
  }
}

async function readJson<T>(file: string): Promise<T | undefined> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as T
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

/** Writes the whole file or nothing: a start that is killed half-way leaves the old file. */
async function writeJson(file: string, value: unknown): Promise<void> {
  const next = `${file}.${process.pid}`
  await writeFile(next, `${JSON.stringify(value, null, 2)}\n`, { mode: 0o600 })
  await rename(next, file)
}
