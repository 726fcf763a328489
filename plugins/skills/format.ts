import { type Document, isMap, isScalar, Lexer, LineCounter, parseDocument, visit } from 'yaml'

/** The six fields of a skill's front matter. */
export interface SkillHeader {
  readonly name: string
  readonly description: string
  readonly license?: string
  readonly compatibility?: string
  readonly allowedTools: string[]
  readonly metadata: Record<string, string>
}

/** The problems that make a skill invalid, and the deviations that were read as they were probably meant. */
export interface Findings {
  readonly problems: string[]
  readonly forgiven: string[]
}

const mostName = 64
const mostDescription = 1_024
const mostCompatibility = 500
const mostFrontMatter = 32 * 1024
const fields = ['name', 'description', 'license', 'compatibility', 'allowed-tools', 'metadata']

/** The form of the Agent Skills format: lower-case letters and digits of any script, and single hyphens between them. */
export const isSkillName = (text: string): boolean =>
  text.length > 0 &&
  [...text].length <= mostName &&
  text === text.normalize('NFKC').toLowerCase() &&
  /^[\p{L}\p{M}\p{N}]+(-[\p{L}\p{M}\p{N}]+)*$/u.test(text)

/**
 * Characters that models read but people do not see: tags, direction overrides, and runs of three or more joiners or selectors (real text and emoji
 * need two at most). In a skill they could hide instructions from a reviewer.
 */
const hidden =
  /[\u{E0000}-\u{E007F}\u202A-\u202E\u2066-\u2069]|(?:[\u200B-\u200F\u2060-\u2064\uFEFF]|\p{Variation_Selector}){3}/u
/** Control characters, and halves of a character, which PostgreSQL does not take. */
const control = /(?![\t\n\r])\p{Cc}|\p{Cs}/u

/** Reports a hidden character. Control characters are not reported, because files beside `SKILL.md` may hold them. */
export function checkSeen(what: string, text: string, problems: string[]): void {
  const found = hidden.exec(text)
  if (found) problems.push(unseen(what, found[0]))
}

function checkText(what: string, text: string, problems: string[]): void {
  const found = hidden.exec(text) ?? control.exec(text)
  if (found) problems.push(unseen(what, found[0]))
}

const unseen = (what: string, character: string): string =>
  `${what} holds U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}, a character that people do not see: take it out.`

/**
 * Reads a `SKILL.md`: strictly first and, where that fails, again as the text was probably meant. `forgiven` lists such corrections. Undefined when
 * the meaning cannot be guessed.
 */
export function readSkill(
  text: string,
  folder: string | undefined,
  findings: Findings,
): { readonly header: SkillHeader; readonly body: string } | undefined {
  const before = findings.problems.length
  const parts = splitFences(text, findings)
  if (!parts) return undefined
  const given = frontMatter(parts.front, findings)
  if (!given) return undefined
  const header = headerOf(given, folder, findings)
  checkText('The body of SKILL.md', parts.body, findings.problems)
  return findings.problems.length > before ? undefined : { header, body: parts.body }
}

/** Splits the text by whole lines, so that a horizontal rule inside the body does not end the front matter. */
function splitFences(
  given: string,
  { problems, forgiven }: Findings,
): { readonly front: string; readonly body: string } | undefined {
  let text = given.replaceAll('\r\n', '\n')
  if (text.startsWith('\uFEFF')) {
    forgiven.push('SKILL.md begins with a byte order mark, which was left out.')
    text = text.slice(1)
  }
  const trimmed = text.replace(/^\s+/, '')
  if (trimmed.startsWith('---') && trimmed !== text)
    forgiven.push('SKILL.md begins with blank space before its front matter.')
  const lines = trimmed.split('\n')
  if (lines[0]?.trimEnd() !== '---') {
    problems.push(
      'SKILL.md has no front matter: its first line has to be `---`, followed by at least name and description.',
    )
    return undefined
  }
  const end = lines.findIndex((line, i) => i > 0 && line.trimEnd() === '---')
  if (end < 0) {
    problems.push('The front matter of SKILL.md does not end: a line `---` has to follow its fields.')
    return undefined
  }
  const front = lines.slice(1, end).join('\n')
  if (front.length > mostFrontMatter) {
    problems.push('The front matter of SKILL.md is larger than 32 KiB.')
    return undefined
  }
  return {
    front,
    body: lines
      .slice(end + 1)
      .join('\n')
      .replace(/^\n+/, ''),
  }
}

type Given = Readonly<Record<string, unknown>>

/** The most tokens and escapes of a front matter: twice those of a hundred tools and a hundred keys of metadata. */
const mostTokens = 4_096

/** Whether a text has more tokens and escapes than any front matter. The parser makes a node, or an error with its trace, of each. */
function isTangled(front: string): boolean {
  let left = mostTokens - front.split('\\').length
  for (const _ of new Lexer().lex(front)) if (--left < 0) return true
  return left < 0
}

/**
 * Every scalar is read as text, as in the reference library: `version: 1.0` is not the number 1. Aliases could expand without bound, and the parser's
 * own check for duplicate keys takes quadratic time. So aliases are refused, and `keyTwice` finds duplicate keys.
 */
function parseFields(front: string): Given | string {
  if (isTangled(front)) return 'it has too many parts'
  const lineCounter = new LineCounter()
  // Only the first error is shown, so the parser is not to prepare each for people.
  const options = {
    schema: 'failsafe',
    uniqueKeys: false,
    logLevel: 'silent',
    prettyErrors: false,
    lineCounter,
  } as const
  const document = parseDocument(front, options)
  const [error] = document.errors
  if (error) {
    const { line, col } = lineCounter.linePos(error.pos[0])
    return `${error.message} at line ${line}, column ${col}`
  }
  const twice = keyTwice(document.contents)
  if (twice !== undefined) return `the key '${clip(twice)}' is there twice`
  try {
    if (hasTreeAsKey(document)) return 'it has a key that is no text'
    const value: unknown = document.toJS({ maxAliasCount: 0 })
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return 'it is no mapping of fields'
    return value as Given
  } catch {
    return 'it uses an alias, or is nested too deeply'
  }
}

/** Whether a key is a list or a mapping. As text it is written anew for each level above it: nine hundred took a minute. */
function hasTreeAsKey(document: Document): boolean {
  let found = false
  visit(document, {
    Pair(_, { key }) {
      found = key !== null && !isScalar(key)
      return found ? visit.BREAK : undefined
    },
  })
  return found
}

/** The first duplicate key of a mapping or of a mapping inside it: of the fields and of `metadata`. */
function keyTwice(node: unknown, inside = false): string | undefined {
  if (!isMap(node)) return undefined
  const seen = new Set<string>()
  for (const { key, value } of node.items) {
    const name = isScalar(key) ? String(key.value) : ''
    if (seen.has(name)) return name
    seen.add(name)
    const within = inside ? undefined : keyTwice(value, true)
    if (within !== undefined) return within
  }
  return undefined
}

function frontMatter(front: string, { problems, forgiven }: Findings): Given | undefined {
  const strict = parseFields(front)
  if (typeof strict !== 'string') return strict
  // The most common mistake: an unquoted description with a colon in it.
  const quoted = front.replaceAll(
    // Two groups that both match blanks would let the regular expression try every way to divide them, so the value starts with a non-blank.
    /^([A-Za-z-]+):[ \t]+(?![ \t"'|>[{])(.*:(?:[ \t].*)?)$/gm,
    (_, key: string, value: string) => {
      return `${key}: ${JSON.stringify(value.trimEnd())}`
    },
  )
  const lenient = quoted === front ? strict : parseFields(quoted)
  if (typeof lenient === 'string') {
    problems.push(`The front matter of SKILL.md is no YAML: ${strict}.`)
    return undefined
  }
  forgiven.push('A value of the front matter holds a colon and was not quoted; it was read as text.')
  return lenient
}

function headerOf(given: Given, folder: string | undefined, findings: Findings): SkillHeader {
  const { problems, forgiven } = findings
  const value: Record<string, unknown> = {}
  for (const [key, one] of Object.entries(given)) {
    const known = fields.find((field) => field.replaceAll('-', '') === key.toLowerCase().replaceAll(/[-_]/g, ''))
    if (known === undefined) forgiven.push(`The format has no field '${clip(key)}'; it was left out.`)
    else if (known !== key) forgiven.push(`The field '${clip(key)}' was read as '${known}'.`)
    if (known !== undefined && (known === key || !(known in given))) value[known] = one
  }
  const text = (field: string, most: number): string | undefined => {
    const one = value[field]
    if (one === undefined || one === null || one === '') return undefined
    if (typeof one !== 'string') return void problems.push(`The field '${field}' has to be text.`)
    checkText(`The field '${field}'`, one, problems)
    if ([...one].length > most) problems.push(`The field '${field}' is longer than ${most} characters.`)
    return one.trim()
  }
  const description = text('description', mostDescription)
  if (!description)
    problems.push("The field 'description' is missing or empty: it tells a model when to use the skill.")
  const license = text('license', mostCompatibility)
  const compatibility = text('compatibility', mostCompatibility)
  return {
    name: nameOf(value['name'], folder, findings),
    description: description ?? '',
    ...(license ? { license } : {}),
    ...(compatibility ? { compatibility } : {}),
    allowedTools: toolsOf(value['allowed-tools'], findings),
    metadata: metadataOf(value['metadata'], findings),
  }
}

function nameOf(given: unknown, folder: string | undefined, { problems, forgiven }: Findings): string {
  const own = typeof given === 'string' ? given.trim() : ''
  if (own === '' && folder !== undefined && isSkillName(folder)) {
    forgiven.push(`The field 'name' is missing; the folder's name '${folder}' was taken.`)
    return folder
  }
  const meant = own
    .normalize('NFKC')
    .toLowerCase()
    .replaceAll(/[\s_]+/g, '-')
  if (!isSkillName(meant)) {
    problems.push(
      own === ''
        ? "The field 'name' is missing."
        : `The name '${clip(own)}' is invalid: use up to ${mostName} lower-case letters and digits, with single hyphens between them.`,
    )
  } else if (meant !== own) forgiven.push(`The name '${clip(own)}' was read as '${meant}'.`)
  else if (folder !== undefined && folder.normalize('NFKC') !== meant)
    forgiven.push(`The folder is called '${clip(folder)}' and the skill '${meant}'; the skill's name was taken.`)
  return meant
}

/** Names separated by blanks; a pattern in parentheses, as in `Bash(git:*)`, belongs to its name. */
function toolsOf(given: unknown, { problems, forgiven }: Findings): string[] {
  if (given === undefined || given === null || given === '') return []
  let text: string
  if (typeof given === 'string') text = given
  else if (Array.isArray(given) && given.every((one) => typeof one === 'string')) {
    forgiven.push("The field 'allowed-tools' is a list; the format has names with blanks between them.")
    text = given.join(' ')
  } else {
    problems.push("The field 'allowed-tools' has to be names of tools with blanks between them.")
    return []
  }
  const bare = text.replaceAll(/\([^()]*\)/g, (pattern) => pattern.replaceAll(/[\s,]/g, '\u0001'))
  if (bare.includes(',')) forgiven.push("The names of 'allowed-tools' have commas between them instead of blanks.")
  const names = bare.split(/[\s,]+/).filter((name) => name !== '')
  const tools = [...new Set(names.map((name) => name.replaceAll('\u0001', ' ')))]
  if (tools.length > 100) problems.push("The field 'allowed-tools' names more than 100 tools.")
  if (tools.some((tool) => tool.length > 200)) problems.push("A name in 'allowed-tools' is longer than 200 characters.")
  for (const tool of tools) checkText("The field 'allowed-tools'", tool, problems)
  return tools
}

function metadataOf(given: unknown, { problems, forgiven }: Findings): Record<string, string> {
  if (given === undefined || given === null || given === '') return {}
  if (typeof given !== 'object' || Array.isArray(given)) {
    problems.push("The field 'metadata' has to be a mapping of text to text.")
    return {}
  }
  const entries = Object.entries(given as Given).map(([key, one]): [string, string] => {
    checkText("The field 'metadata'", key, problems)
    if (typeof one === 'string') {
      checkText("The field 'metadata'", one, problems)
      return [key, one]
    }
    forgiven.push(`The value of '${clip(key)}' in 'metadata' is no text; it was kept as JSON.`)
    return [key, JSON.stringify(one) ?? '']
  })
  if (entries.length > 100) problems.push("The field 'metadata' has more than 100 keys.")
  return Object.fromEntries(entries)
}

/** Shortens a name from an upload and removes control characters, because such names appear in answers and logs. */
export const clip = (text: string): string => {
  const plain = text.replaceAll(/[\p{Cc}\p{Cf}]/gu, '\uFFFD')
  return plain.length > 80 ? `${plain.slice(0, 80)}…` : plain
}
