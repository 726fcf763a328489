import type { LanguageModelV4CallOptions, LanguageModelV4FilePart, LanguageModelV4Prompt } from '@ai-sdk/provider'

export interface Response {
  readonly text: string
  readonly calls: readonly { readonly id: string; readonly name: string; readonly input: Record<string, string> }[]
}

type Tools = NonNullable<LanguageModelV4CallOptions['tools']>

const identity =
  'I am the built-in demo responder, not a language model: I follow a few simple rules so that Agent Orc answers ' +
  'before a model is configured.'

const say = (text: string): Response => ({ text, calls: [] })

/** The rules' reaction to a conversation: a text, or tool calls, whose results come with the next call. */
export function respond(prompt: LanguageModelV4Prompt, tools: Tools): Response {
  const results = resultsOf(prompt)
  if (results.length > 0) return say(withResults(results))
  const said = userTexts(prompt)
  const text = said.at(-1) ?? ''
  const remembered = fromHistory(text, said.slice(0, -1))
  if (remembered !== undefined) return say(remembered)
  const calls = toolsFor(text, tools)
  if (calls.length > 0)
    return { text: '', calls: calls.map((call, i) => ({ id: `builtin_${prompt.length}_${i}`, ...call })) }
  const files = filesOf(prompt)
  if (files !== '') return say(`${identity} ${files} You said: "${shorten(text)}".`)
  if (asksWho.test(text)) return say(`${identity} ${abilities(tools)}`)
  const introduced = nameIn(text)
  if (introduced !== undefined)
    return say(`Nice to meet you, ${introduced}. I will remember your name in this session.`)
  return say(`${identity} You said: "${shorten(text)}". ${abilities(tools)}`)
}

const asksWho = /\b(who|what)\s+are\s+you\b|\bare you (an? )?(ai|bot|language model|llm|human)\b/i

const nameIn = (text: string): string | undefined => /\bmy name is ([\p{L}\p{N}_'-]{1,64})/iu.exec(text)?.[1]

/** Answers that need only the earlier messages of this conversation. */
function fromHistory(text: string, before: readonly string[]): string | undefined {
  if (/\b(what('s| is)|do you (know|remember)) my name\b/i.test(text)) {
    const name = before.map(nameIn).findLast((found) => found !== undefined)
    return name === undefined ? 'You have not told me your name yet.' : `Your name is ${name}.`
  }
  if (/\bwhat did i (say|ask|write|tell you)\b|\bwhat was my (last|first|previous) (message|question)\b/i.test(text)) {
    const earlier = /\bfirst\b/i.test(text) ? before[0] : before.at(-1)
    return earlier === undefined
      ? 'This is the first message of our conversation.'
      : `Before this message you said: "${shorten(earlier)}".`
  }
  return undefined
}

interface Call {
  readonly name: string
  readonly input: Record<string, string>
}

/** The tools that a message asks for, among those of the profile. One message may ask for several things. */
function toolsFor(text: string, tools: Tools): Call[] {
  const command = asksShell.exec(text)?.[1]
  if (command !== undefined && has(tools, 'shell')) {
    return [{ name: 'shell', input: argument(tools, 'shell', command) }]
  }
  const calls: Call[] = []
  const expression = arithmeticIn(text)
  if (expression !== undefined && has(tools, 'calculate')) {
    calls.push({ name: 'calculate', input: argument(tools, 'calculate', expression) })
  }
  if (asksTime.test(text) && has(tools, 'current_time')) {
    const zone = /\b[A-Z][a-z]+\/[A-Z][A-Za-z_]+\b|\bUTC\b/.exec(text)?.[0]
    calls.push({ name: 'current_time', input: zone === undefined ? {} : argument(tools, 'current_time', zone) })
  }
  const about = text.split(/(?<=[.?!])\s+/).find((sentence) => asksDocs.test(sentence))
  if (about !== undefined && has(tools, 'search_docs')) {
    calls.push({ name: 'search_docs', input: argument(tools, 'search_docs', about.slice(0, 500)) })
  }
  return calls
}

const asksShell = /\b(?:run|execute) `([^`]+)`/i
const asksTime =
  /\bwhat('s| is) the (current )?(time|date)\b|\bwhat (time|day|date) is it\b|\b(current|today'?s) (time|date)\b/i
const asksDocs =
  /\b(agent[- ]?orc|docs?|documentation|manual|handbook)\b|\bhow (do|can|should) (i|we|you)\b|\b(which|what) page\b/i

const has = (tools: Tools, name: string): boolean => tools.some((tool) => tool.name === name)

/** The tool's own schema names its argument, so a tool may rename it without breaking the demo. */
function argument(tools: Tools, name: string, value: string): Record<string, string> {
  const tool = tools.find((candidate) => candidate.name === name)
  const schema = tool?.type === 'function' ? tool.inputSchema : undefined
  const key = schema?.required?.[0] ?? Object.keys(schema?.properties ?? {})[0]
  return key === undefined ? {} : { [key]: value }
}

interface Result {
  readonly name: string
  readonly ok: boolean
  readonly text: string
}

/** The tool results at the end of the conversation, because of which the model was called again. */
function resultsOf(prompt: LanguageModelV4Prompt): Result[] {
  const last = prompt.at(-1)
  if (last?.role !== 'tool') return []
  return last.content.flatMap((part) => {
    if (part.type !== 'tool-result') return []
    const { output } = part
    const text =
      'value' in output ? (typeof output.value === 'string' ? output.value : JSON.stringify(output.value)) : ''
    return [{ name: part.toolName, ok: !output.type.startsWith('error'), text }]
  })
}

const withResults = (results: readonly Result[]): string =>
  results.map(({ name, ok, text }) => (ok ? intro(name, text) : `The tool ${name} failed: ${text}`)).join('\n')

const intro = (name: string, text: string): string => {
  if (name === 'calculate') return `The result is ${text}.`
  if (name === 'current_time') return `The current time is ${text}.`
  if (name === 'search_docs') return found(text)
  if (name === 'shell') return text
  return `The tool ${name} answered: ${text}`
}

/** The best pages of a search, in words. A result in another form comes from another tool of that name, and is passed on unchanged. */
function found(text: string): string {
  try {
    const pages = JSON.parse(text) as { title?: unknown; file?: unknown }[]
    if (pages.length === 0) return 'The documentation does not mention that.'
    const lines = pages.slice(0, 3).map(({ title, file }) => `- ${String(title)}, in ${String(file)}`)
    return `The documentation has this:\n${lines.join('\n')}`
  } catch {
    return `I found this in the documentation:\n${text}`
  }
}

/** The user's last message. */
export const lastOf = (prompt: LanguageModelV4Prompt): string => userTexts(prompt).at(-1) ?? ''

/** A description of the last message's attachments; '' when there are none. */
function filesOf(prompt: LanguageModelV4Prompt): string {
  const last = prompt.findLast(({ role }) => role === 'user')
  const names =
    last?.role === 'user' ? last.content.flatMap((part) => (part.type === 'file' ? [nameOf(part)] : [])) : []
  return names.length === 0 ? '' : `I have got ${names.join(', ')}, but cannot look inside.`
}

const nameOf = ({ filename, mediaType, data }: LanguageModelV4FilePart): string => {
  const bytes = data.type === 'data' && typeof data.data === 'string' ? Buffer.byteLength(data.data, 'base64') : 0
  return `${filename ?? 'a file'} (${mediaType}, ${bytes} bytes)`
}

/** Only so many characters of a message are matched, because some of the patterns are not linear. */
const maxLooked = 2_000

const userTexts = (prompt: LanguageModelV4Prompt): string[] =>
  prompt.flatMap((message) =>
    message.role === 'user'
      ? [
          message.content
            .map((part) => (part.type === 'text' ? part.text : ''))
            .join('')
            .slice(0, maxLooked),
        ]
      : [],
  )

const abilities = (tools: Tools): string => {
  const can = [
    has(tools, 'calculate') ? 'do arithmetic' : '',
    has(tools, 'current_time') ? 'tell the time' : '',
    has(tools, 'search_docs') ? 'search the documentation' : '',
    has(tools, 'shell') ? 'run a command (say: run `date`)' : '',
    'recall what you said before',
  ].filter((part) => part !== '')
  return `I can ${can.join(', ')}. For real answers set OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY and the profile's model.`
}

const shorten = (text: string): string => (text.length > 500 ? `${text.slice(0, 500)}…` : text)

const number = String.raw`\d+(?:[.,]\d+)*`

/** An arithmetic expression in a message, in the form that `calculate` accepts. Undefined when there is none. */
export function arithmeticIn(text: string): string | undefined {
  const percent = new RegExp(String.raw`(${number})\s*(?:%|percent)\s+of\s+(${number})`, 'i').exec(text)
  if (percent) return `${plain(percent[2]!)} * ${plain(percent[1]!)} / 100`
  const worded = text
    .replace(/(?<=\d\)?)\s*(?:times|multiplied by|x|×)\s*(?=[(\d])/gi, ' * ')
    .replace(/(?<=\d\)?)\s*(?:divided by|over|÷)\s*(?=[(\d])/gi, ' / ')
    .replace(/(?<=\d\)?)\s+plus\s+(?=[(\d])/gi, ' + ')
    .replace(/(?<=\d\)?)\s+minus\s+(?=[(\d])/gi, ' - ')
  // At least one operator between two numbers. A date such as 2026-11-21 is not a sum.
  const found = new RegExp(String.raw`[(\s]*-?${number}(?:[\s()]*[-+*/^][\s(]*-?${number})+[\s)]*`)
    .exec(worded)?.[0]
    .trim()
  if (found === undefined || /^\d{4}-\d{2}-\d{2}$/.test(found)) return undefined
  return balanced(found) ? plain(found) : undefined
}

/** `1,250.5` is 1250.5. */
const plain = (text: string): string => text.replace(/(?<=\d),(?=\d{3}(?!\d))/g, '').replace(/(?<=\d),(?=\d)/g, '.')

function balanced(text: string): boolean {
  let depth = 0
  for (const c of text) {
    if (c === '(') depth++
    if (c === ')' && --depth < 0) return false
  }
  return depth === 0
}
