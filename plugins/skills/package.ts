import { isUtf8 } from 'node:buffer'
import { setImmediate as turn } from 'node:timers/promises'
import { stringify } from 'yaml'
import { digestOfListed, sha256, type SkillFile } from '#contracts/skills'
import { mostShownBytes } from '#kit'
import { contentTypeOf } from '#kit/files'
import { checkSeen, clip, type Findings, readSkill, type SkillHeader } from './format.ts'
import { collisions, isLitter, pathProblem } from './paths.ts'

/** The most files of one skill. Another limit bounds their bytes. */
export const mostFiles = 500
/** The largest `SKILL.md` in bytes: twice what one call of `skill_read` can return. */
const mostSkillMd = 128 * 1024
export const skillMd = 'SKILL.md'

/** A file of a skill without its content. */
export interface Resource {
  readonly path: string
  readonly contentType: string
  readonly sha256: string
  readonly executable: boolean
  readonly bytes: number
}

/** A complete skill that follows the format. */
export interface SkillPackage extends SkillHeader {
  readonly digest: string
  readonly body: string
  /** All files: `SKILL.md` first, the others sorted by path. */
  readonly files: readonly SkillFile[]
  /** All files except `SKILL.md`, in the order of `files`. */
  readonly resources: Resource[]
  readonly requiresSandbox: boolean
  readonly totalBytes: number
}

/** The result of reading a folder. */
export interface Reading extends Findings {
  /** The name of the skill; for an invalid skill, the name that it would have. */
  readonly name: string
  readonly resources: Resource[]
  readonly totalBytes: number
  readonly requiresSandbox: boolean
  /** Present when there is no problem. */
  readonly skill: SkillPackage | undefined
}

/** An uploaded file, under a path that starts with the skill's folder. */
export interface GivenFile extends SkillFile {
  /** True for a link or a device instead of a regular file. */
  readonly special?: boolean
}

/** Reads one skill folder, whose files are named `<folder>/SKILL.md`, and reports all its problems at once. */
export async function readFolder(given: readonly GivenFile[]): Promise<Reading> {
  const findings: Findings = { problems: [], forgiven: [] }
  const { problems, forgiven } = findings
  const kept = given.filter(({ path }) => !isLitter(path))
  if (kept.length < given.length)
    forgiven.push('Files that systems leave behind, such as .DS_Store and .git, were left out.')
  const sound: string[] = []
  for (const { path, special = false } of kept) {
    const problem = pathProblem(path)
    if (problem === undefined) sound.push(path)
    else problems.push(problem)
    if (special) problems.push(`'${clip(path)}' is a link or a device; a skill has regular files only.`)
  }
  problems.push(...(await collisions(sound)))
  if (kept.length > mostFiles) problems.push(`There are ${kept.length} files; a skill has at most ${mostFiles}.`)
  const folder = folderOf(kept, problems)
  const files = kept.map((file) => ({ ...file, path: file.path.slice(file.path.indexOf('/') + 1) }))
  // Paths, the main file and all others each take a turn of the event loop.
  await turn()
  const read = readMain(folder, files, findings)
  await turn()
  return told(readingOf(read, await readOthers(read.others, problems), findings))
}

/** The most findings of one kind that an answer lists. */
const mostFindings = 100

/** A reading whose lists are bounded: a hostile folder could have tens of thousands of findings, and paths of any length. */
function told(reading: Reading): Reading {
  const first = (all: readonly string[]): string[] =>
    all.length <= mostFindings
      ? [...all]
      : [...all.slice(0, mostFindings), `There are ${all.length - mostFindings} more of these.`]
  const resources = reading.resources.filter(({ path }) => pathProblem(path) === undefined).slice(0, mostFiles)
  return { ...reading, problems: first(reading.problems), forgiven: first(reading.forgiven), resources }
}

/** Reads a skill that a client wrote field by field. Nothing is forgiven here. */
export function readWritten(header: SkillHeader, body: string): Reading {
  const main = { path: skillMd, bytes: Buffer.from(textOf(header, body)), executable: false }
  const findings: Findings = { problems: [], forgiven: [] }
  const reading = readingOf(readMain(header.name, [main], findings), [], findings)
  const several = header.allowedTools
    .filter((tool) => /\s/.test(tool.replaceAll(/\([^()]*\)/g, '')))
    .map((tool) => `'${clip(tool)}' in 'allowedTools' is not the name of one tool: it has a blank in it.`)
  // An import would accept these deviations. A client that writes fields can correct them, so here they are problems.
  const unfit = reading.forgiven.map((finding) => `Does not follow the format: ${finding}`)
  if (several.length + unfit.length === 0) return told(reading)
  return told({ ...reading, problems: [...reading.problems, ...several, ...unfit], forgiven: [], skill: undefined })
}

/** The one folder in which all files are. */
function folderOf(files: readonly SkillFile[], problems: string[]): string {
  const folders = new Set(files.map(({ path }) => (path.includes('/') ? path.slice(0, path.indexOf('/')) : '')))
  if (files.length === 0)
    problems.push('There are no files: send each as a part `files`, named <folder>/SKILL.md and so on.')
  if (folders.has('')) problems.push('Files are named with the folder of the skill in front: <folder>/SKILL.md.')
  else if (folders.size > 1) {
    const names = [...folders].slice(0, 5).map((name) => `'${clip(name)}'`)
    problems.push(`There are several folders (${names.join(', ')}); send one skill at a time.`)
  }
  return [...folders][0] ?? ''
}

/** The files of a skill, of which `SKILL.md` has been read. */
interface ReadMain {
  readonly folder: string
  readonly main: SkillFile | undefined
  readonly header: ReturnType<typeof headerOf>
  /** All other files, sorted by path. */
  readonly others: readonly SkillFile[]
}

function readMain(folder: string, files: readonly SkillFile[], findings: Findings): ReadMain {
  const main = mainOf(files, findings)
  const header = main && headerOf(main, folder, findings)
  const others = files.filter((file) => file !== main).toSorted((a, b) => (a.path < b.path ? -1 : 1))
  return { folder, main, header, others }
}

/** Bytes and files that are read before others get a turn. All of a large skill takes longer than anybody may keep a process to itself. */
const atOnce = { bytes: 512 * 1024, files: 64 }

async function readOthers(others: readonly SkillFile[], problems: string[]): Promise<Resource[]> {
  const resources: Resource[] = []
  let left = atOnce.bytes
  for (const file of others) {
    const { path, bytes } = file
    // Models read these files as they read the body, so the same check applies.
    if (isShown(bytes)) checkSeen(`The file '${clip(path)}'`, Buffer.from(bytes).toString('utf8'), problems)
    resources.push(resourceOf(file))
    left -= bytes.length + atOnce.bytes / atOnce.files
    if (left > 0) continue
    await turn()
    left = atOnce.bytes
  }
  return resources
}

function readingOf({ folder, main, header, others }: ReadMain, resources: Resource[], findings: Findings): Reading {
  const parts = {
    resources,
    requiresSandbox: resources.some(isScript),
    totalBytes: [...(main ? [main] : []), ...others].reduce((sum, { bytes }) => sum + bytes.length, 0),
  }
  const name = header?.header.name ?? clip(folder)
  if (!main || !header || findings.problems.length > 0) return { ...findings, ...parts, name, skill: undefined }
  // A `SKILL.md` that deviates from the format is written anew in the strict form, so that the stored skill works with any other tool.
  const strict = findings.forgiven.length === 0
  const kept = strict
    ? main
    : { path: skillMd, bytes: Buffer.from(textOf(header.header, header.body)), executable: false }
  const totalBytes = parts.totalBytes - main.bytes.length + kept.bytes.length
  const digest = digestOfListed([resourceOf(kept), ...resources])
  const skill = { ...header.header, ...parts, digest, body: header.body, files: [kept, ...others], totalBytes }
  return { ...findings, ...parts, name, totalBytes, skill }
}

function mainOf(files: readonly SkillFile[], { problems, forgiven }: Findings): SkillFile | undefined {
  const main = files.find(({ path }) => path === skillMd)
  if (main) return main
  const other = files.find(({ path }) => path.toLowerCase() === 'skill.md')
  if (other) forgiven.push(`'${other.path}' was read as ${skillMd}.`)
  else if (files.length > 0) problems.push(`There is no ${skillMd} in the folder.`)
  return other
}

function headerOf(main: SkillFile, folder: string, findings: Findings) {
  if (main.bytes.length > mostSkillMd) {
    findings.problems.push(
      `${skillMd} is larger than ${mostSkillMd / 1024} KiB; put what is not always needed into files beside it.`,
    )
    return undefined
  }
  if (!isUtf8(main.bytes)) {
    findings.problems.push(`${skillMd} is no UTF-8 text.`)
    return undefined
  }
  return readSkill(Buffer.from(main.bytes).toString('utf8'), folder === '' ? undefined : folder, findings)
}

/** Writes a `SKILL.md` in the strict form. */
function textOf(
  { name, description, license, compatibility, allowedTools, metadata }: SkillHeader,
  body: string,
): string {
  const front = {
    name,
    description,
    ...(license === undefined ? {} : { license }),
    ...(compatibility === undefined ? {} : { compatibility }),
    ...(allowedTools.length === 0 ? {} : { 'allowed-tools': allowedTools.join(' ') }),
    ...(Object.keys(metadata).length === 0 ? {} : { metadata }),
  }
  return `---\n${stringify(front, { lineWidth: 0 })}---\n\n${body}`
}

export const isScript = ({ path, executable }: Pick<Resource, 'path' | 'executable'>): boolean =>
  executable || path.startsWith('scripts/')

const resourceOf = ({ path, bytes, executable }: SkillFile): Resource => ({
  path,
  contentType: typeOf(path, bytes),
  sha256: sha256(bytes),
  executable,
  bytes: bytes.length,
})

/** The content type by the file's name, or else by whether it is text. The type that the uploader claims is not trusted. */
const typeOf = (path: string, bytes: Uint8Array): string =>
  contentTypeOf(path) ?? (isText(bytes) ? 'text/plain' : 'application/octet-stream')

export const isText = (bytes: Uint8Array): boolean => !bytes.includes(0) && isUtf8(bytes)
/** Whether a model is shown the file itself. Any other file is put into the sandbox. */
export const isShown = (bytes: Uint8Array): boolean => bytes.length <= mostShownBytes && isText(bytes)
