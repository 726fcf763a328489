import { isUtf8 } from 'node:buffer'
import { stringify } from 'yaml'
import { digestOf, sha256, type SkillFile } from '#contracts/skills'
import { mostShownBytes } from '#kit'
import { contentTypeOf } from '#kit/files'
import { checkSeen, clip, type Findings, readSkill, type SkillHeader } from './format.ts'
import { collisions, isLitter, pathProblem } from './paths.ts'

/** Files of one skill, beside the limit on its bytes. */
export const mostFiles = 500
/** What one call of `skill_read` can answer, twice over. */
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
  /** Every file, `SKILL.md` first and the others by path. */
  readonly files: readonly SkillFile[]
  /** What there is beside `SKILL.md`, in the order of `files`. */
  readonly resources: Resource[]
  readonly requiresSandbox: boolean
  readonly totalBytes: number
}

/** What became of the reading of a folder. */
export interface Reading extends Findings {
  /** The name that the skill has, or would have. */
  readonly name: string
  readonly resources: Resource[]
  readonly totalBytes: number
  readonly requiresSandbox: boolean
  /** Present when there is no problem. */
  readonly skill: SkillPackage | undefined
}

/** A file that came under a path with the skill's folder in front, or something else under such a path. */
export interface GivenFile extends SkillFile {
  /** It is no regular file, but a link or a device. */
  readonly special?: boolean
}

/** Reads one skill folder, whose files are named `<folder>/SKILL.md`, and lists everything that is wrong with it at once. */
export function readFolder(given: readonly GivenFile[]): Reading {
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
  problems.push(...collisions(sound))
  if (kept.length > mostFiles) problems.push(`There are ${kept.length} files; a skill has at most ${mostFiles}.`)
  const folder = folderOf(kept, problems)
  const files = kept.map((file) => ({ ...file, path: file.path.slice(file.path.indexOf('/') + 1) }))
  return told(readFiles(folder, files, findings))
}

/** Findings of one kind that an answer lists. */
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

/** Reads what was written field by field, without forgiving anything. */
export function readWritten(header: SkillHeader, body: string): Reading {
  const main = { path: skillMd, bytes: Buffer.from(textOf(header, body)), executable: false }
  const reading = readFiles(header.name, [main], { problems: [], forgiven: [] })
  const several = header.allowedTools
    .filter((tool) => /\s/.test(tool.replaceAll(/\([^()]*\)/g, '')))
    .map((tool) => `'${clip(tool)}' in 'allowedTools' is not the name of one tool: it has a blank in it.`)
  // What an import would read as it was meant is to be written as it is meant.
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

function readFiles(folder: string, files: readonly SkillFile[], findings: Findings): Reading {
  const { problems } = findings
  const main = mainOf(files, findings)
  const header = main && headerOf(main, folder, findings)
  const others = files.filter((file) => file !== main).toSorted((a, b) => (a.path < b.path ? -1 : 1))
  // A model reads these as it reads the body.
  for (const { path, bytes } of others)
    if (isShown(bytes)) checkSeen(`The file '${clip(path)}'`, Buffer.from(bytes).toString('utf8'), problems)
  const resources = others.map(resourceOf)
  const parts = {
    resources,
    requiresSandbox: resources.some(isScript),
    totalBytes: files.reduce((sum, { bytes }) => sum + bytes.length, 0),
  }
  const name = header?.header.name ?? clip(folder)
  if (!header || problems.length > 0) return { ...findings, ...parts, name, skill: undefined }
  const skill = packed(header.header, header.body, others, findings.forgiven.length === 0 ? main : undefined)
  return { ...findings, ...parts, name, totalBytes: skill.totalBytes, skill }
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

/**
 * Packs a skill. Unless its `SKILL.md` was right as it was, a right one is written from what was read, so that what is kept
 * can be taken anywhere.
 */
export function packed(
  header: SkillHeader,
  body: string,
  others: readonly SkillFile[],
  main: SkillFile = { path: skillMd, bytes: Buffer.from(textOf(header, body)), executable: false },
): SkillPackage {
  const files = [main, ...others]
  const resources = others.map(resourceOf)
  return {
    ...header,
    digest: digestOf(files),
    body,
    files,
    resources,
    requiresSandbox: resources.some(isScript),
    totalBytes: files.reduce((sum, { bytes }) => sum + bytes.length, 0),
  }
}

/** A `SKILL.md` in the strict form. */
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

/** By the name, and else by whether it is text: what an uploader says of a file is not believed. */
const typeOf = (path: string, bytes: Uint8Array): string =>
  contentTypeOf(path) ?? (isText(bytes) ? 'text/plain' : 'application/octet-stream')

export const isText = (bytes: Uint8Array): boolean => !bytes.includes(0) && isUtf8(bytes)
/** A model is shown the file itself; any other is put into the sandbox. */
export const isShown = (bytes: Uint8Array): boolean => bytes.length <= mostShownBytes && isText(bytes)
