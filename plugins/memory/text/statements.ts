import { recalledBegin, recalledEnd } from '#contracts/memory'

// Rules that need no model. They decide which parts of a text are worth keeping, and which must not be kept.

/** Why a text is not worth keeping. */
export type Junk = 'empty' | 'greeting' | 'system_prompt' | 'tool_noise' | 'recalled'

/** The most characters of one memory's content. */
export const mostContent = 8_000
/** The most lines of a text that are read. */
const mostLines = 500
/** Lines and sentences are read in parts of at most this many characters, so that no pattern has to search a longer text. */
const mostLine = 4_000

/** The statements of a text, one per line, or why there is nothing to keep. */
export function statementsOf(text: string): { readonly content: string } | { readonly junk: Junk } {
  const wellFormed = tidied(text)
  if (wellFormed.trim() === '') return { junk: 'empty' }
  const own = withoutRecalled(wellFormed)
  if (own.trim() === '') return { junk: 'recalled' }
  const whole = conversation.test(own) ? undefined : junkOf(own)
  if (whole) return { junk: whole }
  const kept: string[] = []
  let left: Junk | undefined
  let system = false
  let length = 0
  for (const line of own.split('\n', mostLines)) {
    if (length > mostContent) break
    const { role, said } = spokenBy(line)
    // The output of a system or a tool continues until another speaker begins.
    if (role !== undefined) system = role === 'system'
    if (system) left ??= /^\s*(system|developer)/i.test(line) ? 'system_prompt' : 'tool_noise'
    if (system || said.trim() === '') continue
    for (const sentence of sentencesOf(said)) {
      const junk = isPhatic(sentence) ? 'greeting' : isNoise(sentence) ? 'tool_noise' : undefined
      if (junk) left ??= junk
      else {
        kept.push(sentence)
        length += sentence.length
      }
    }
  }
  const statements = joined(kept)
  return statements === '' ? { junk: left ?? 'empty' } : { content: statements }
}

/** Matches a transcript, whose lines are handled by their speaker. */
const conversation = /^\s*(?:user|human|assistant|ai|agent)\s*[:：]/im

/** Removes characters that cannot be stored, and shortens long runs of white space, on which patterns would backtrack. */
export const tidied = (text: string): string =>
  text
    .toWellFormed()
    .replaceAll('\0', '')
    .replaceAll(/[^\S\n]+/g, ' ')
    .replaceAll(/\n(?: ?\n){2,}/g, '\n\n')

/** The reason why a curated text is refused; undefined for an acceptable text. */
export function junkOf(text: string): Junk | undefined {
  const trimmed = tidied(text).trim()
  if (trimmed === '') return 'empty'
  const own = withoutRecalled(trimmed).trim()
  if (own === '') return 'recalled'
  const head = own.slice(0, mostLine)
  if (isSystemPrompt(head)) return 'system_prompt'
  if (isJson(own) || isTrace(head) || isNoise(head)) return 'tool_noise'
  if (own.length < 400 && sentencesOf(bare(own)).every(isPhatic)) return 'greeting'
  return undefined
}

/** Removes recalled memories from a text. Memories made from memories would displace all others. */
export function withoutRecalled(text: string): string {
  let rest = ''
  let from = 0
  for (;;) {
    const begin = text.indexOf(recalledBegin, from)
    if (begin < 0) return rest + text.slice(from)
    rest += text.slice(from, begin)
    const end = text.indexOf(recalledEnd, begin)
    if (end < 0) return rest
    from = end + recalledEnd.length
  }
}

/** `Ann: …` keeps its speaker. Lines of a role are kept only if people or agents said them, and without the role. */
function spokenBy(line: string): { readonly role: 'person' | 'system' | undefined; readonly said: string } {
  const role =
    /^\s*[[(<*]*(system|developer|tool|function|tool_result|tool_call|user|human|assistant|ai|agent)[\])>*]*\s*[:：]\s*/i.exec(
      line,
    )
  if (!role)
    return {
      role: /^\s*\p{Lu}[\p{L}.'-]{0,30}(?: \p{Lu}[\p{L}.'-]{0,30}){0,2}\s*[:：]/u.test(line) ? 'person' : undefined,
      said: line,
    }
  const isPerson = /^(user|human|assistant|ai|agent)$/i.test(role[1]!)
  return { role: isPerson ? 'person' : 'system', said: line.slice(role[0].length) }
}

const speaker = /^\s*\p{Lu}[\p{L}.'-]{0,30}(?: \p{Lu}[\p{L}.'-]{0,30}){0,2}\s*[:：]\s*/u
/** The line without the name of its speaker. */
export const bare = (line: string): string => line.replace(speaker, '')
/** The speaker, if the line names one. */
export const speakerOf = (line: string): string | undefined =>
  speaker
    .exec(line)?.[0]
    .replace(/\s*[:：]\s*$/u, '')
    .trim() || undefined

/** The sentences of a line. The speaker's name is put before the first sentence that is worth keeping. */
function sentencesOf(line: string): string[] {
  const named = speakerOf(line)
  const parts = bare(line)
    .slice(0, 8 * mostLine)
    .split(/(?<=[.!?…])\s+(?=["'“(¿¡]?[\p{Lu}\p{N}])|(?<=[。！？])|\s*[;；]\s+(?=\p{Lu})/u)
    .map((part) => part.trim().replace(/^[-*•–]\s+/, ''))
    .filter(Boolean)
  if (named === undefined) return parts
  const first = parts.findIndex((part) => !isPhatic(part))
  return parts.map((part, i) => (i === first ? `${named}: ${part}` : part))
}

/** Joins the statements, one per line and each only once. The result is never longer than a memory may be. */
function joined(statements: readonly string[]): string {
  let text = ''
  for (const statement of new Set(statements)) {
    const next = text === '' ? statement : `${text}\n${statement}`
    if (next.length > mostContent) return text === '' ? statement.slice(0, mostContent).toWellFormed() : text
    text = next
  }
  return text
}

const greetings = [
  // English
  '(?:hi|hey|hello|yo|howdy|greetings|good (?:morning|afternoon|evening|night)|welcome back|bye|goodbye|see you(?: (?:soon|later|then|around))?|take care|talk (?:to you )?(?:soon|later)|cheers|have a (?:nice|good|great|lovely) (?:day|one|evening|weekend|time))',
  "(?:thanks|thank you|thx|many thanks|thanks a lot|thank you (?:so|very) much|you'?re (?:very )?welcome|no problem|no worries|my pleasure|don'?t mention it)",
  "(?:how are you(?: doing| today)*|how'?s it going|what'?s up|how have you been|how was your day|how do you do|nice to (?:meet|see|hear from) you|good to (?:see|hear from) you|long time no see|(?:is there )?anything else(?: i can (?:help|do).{0,30})?|how (?:can|may) i (?:help|assist) you(?: today)?|let me know if .{0,60}|i hope this helps|happy to help|glad (?:i could|to) help)",
  // German
  "(?:hallo|guten (?:morgen|tag|abend)|gute nacht|servus|moin|tschüss|auf wiedersehen|bis (?:bald|später|dann)|danke(?: schön| dir| ihnen| sehr)?|vielen dank|bitte(?: schön| sehr)?|gern geschehen|kein problem|wie geht(?:'?s| es (?:dir|ihnen))|was gibt'?s|gut|prima|super|ja|nein|okay)",
  // Spanish
  '(?:hola|buen(?:os|as) (?:días|dias|tardes|noches)|adiós|adios|hasta (?:luego|pronto|mañana)|gracias|muchas gracias|de nada|por nada|no hay problema|qué tal|que tal|cómo estás|como estas)',
  // Russian
  '(?:привет|здравствуйте?|добрый (?:день|вечер)|доброе утро|спокойной ночи|пока|до свидания|до встречи|спасибо|большое спасибо|пожалуйста|не за что|как дела|что нового)',
  // Chinese
  '(?:你好|您好|大家好|早上好|下午好|晚上好|晚安|再见|拜拜|谢谢(?:你|您)?|多谢|不客气|没关系|最近怎么样|没问题)',
].join('|')
/** Answers that say nothing by themselves. */
const replies =
  "(?:sure(?: thing)?|ok(?:ay)?|alright|great|cool|nice|awesome|perfect|wow|got it|i see|sounds good|of course|yes|yeah|yep|no|nope|lol|haha+|hmm+|(?:i'?m )?(?:fine|good|doing well)|alles klar|gut|prima|super|ja|nein|vale|claro|perfecto|sí|si|хорошо|ладно|отлично|понятно|да|нет|好的?|嗯+|哈哈+|是的?|不是)"
/** The people that a greeting addresses. */
const addressee =
  "(?:[ ,]+(?:there|all|everyone|again|guys|folks|man|buddy|friend|so much|a lot|then|\\p{Lu}[\\p{L}'-]{1,20}))?"
const phatic = new RegExp(`^(?:(?:oh|ah|well|so|and)[,!]? )?(?:(?:${greetings})${addressee}|${replies})$`, 'u')
/** A name behind a greeting: "Thanks, Ann". */
const called = /^\p{Lu}[\p{L}'-]{1,20}$/u
const greeting = new RegExp(`^(?:${greetings})$`, 'u')
const plain = new RegExp(`^(?:${greetings}|${replies})$`, 'u')
/** Lowers the first letter of a sentence and the word "I", because the patterns are in lower case. Other capitals stay, because they mark names. */
const lowered = (part: string): string =>
  part.charAt(0).toLowerCase() + part.slice(1).replaceAll(/(?<!\p{L})I(?!\p{L})/gu, 'i')

/** True for a sentence of mere courtesy, which holds nothing that could be asked for later. */
function isPhatic(sentence: string): boolean {
  const text = bare(sentence).slice(0, 200)
  if (text.length >= 200) return false
  const parts = text.split(/[.!?…。！？,，;；~]+/u).map((part) => part.replaceAll(/[^\p{L}\p{N}' -]/gu, '').trim())
  const said = parts.filter(Boolean)
  return said.length === 0
    ? !/\p{L}|\p{N}/u.test(text)
    : said.every(
        (part, i) =>
          phatic.test(lowered(part)) ||
          plain.test(part.toLowerCase()) ||
          (called.test(part) && greeting.test(lowered(said[i - 1] ?? ''))),
      )
}

const orders =
  /\b(?:you must|you should(?: always| never)?|do not|don't|never|always|respond (?:only|in|with)|reply (?:only|in|with)|your (?:task|role|goal|job) is|follow these|when the user|the user'?s? (?:message|query|request)|output format|as an ai)\b/gi
const personas = [
  /^[^\p{L}\p{N}]*(?:system prompt|<\|?(?:system|im_start)|\[system\]|### ?(?:system|instructions?))/iu,
  /^[^\p{L}\p{N}]*(?:system:\s*)?you(?:'re| are) (?:now )?(?:an?|the|\p{Lu}[\p{L}\p{N}-]{1,30},? an?) [^.\n]{0,120}\b(?:assistant|agent|chatbot|bot|ai|language model|expert|copilot)\b/iu,
  /^[^\p{L}\p{N}]*(?:du bist|sie sind) (?:jetzt )?ein(?:e)? [^.\n]{0,80}(?:assistent(?:in)?|agent|bot|ki|sprachmodell)(?!\p{L})/iu,
  /^[^\p{L}\p{N}]*(?:eres|usted es) una? [^.\n]{0,80}(?<!\p{L})(?:asistente|agente|bot|ia|modelo de lenguaje)(?!\p{L})/iu,
  /^[^\p{L}\p{N}]*(?:ты|вы)\s*[-—–]?\s*[^.\n]{0,60}(?<!\p{L})(?:ассистент|помощник|агент|бот|языковая модель)(?!\p{L})/iu,
  /^[^\p{L}\p{N}]*你是(?:一个|一名|一位)?[^。\n]{0,40}(?:助手|助理|机器人|模型|专家|智能体)/u,
]
function isSystemPrompt(head: string): boolean {
  if (personas.some((pattern) => pattern.test(head.slice(0, 400)))) return true
  return head.length > 300 && (head.match(orders)?.length ?? 0) >= 5
}

function isJson(text: string): boolean {
  if (!/^\s*[[{]/.test(text) || !/[\]}]\s*$/.test(text)) return false
  try {
    JSON.parse(text)
    return true
  } catch {
    // JSON that does not parse may be the answer of a tool that was cut.
    return /^\s*[[{]\s*"[\w.-]{1,60}"\s*:/.test(text)
  }
}
const isTrace = (head: string): boolean =>
  /^\s*(?:Traceback \(most recent call last\)|[\w.]{0,80}(?:Error|Exception): .{0,300}\n\s+at )/m.test(head) ||
  (head.match(/^\s+at .{1,200}[(:]\S*:\d+/gm)?.length ?? 0) >= 2
const noises = [
  /^\s*<\/?(?:tool_call|tool_result|function_call|function_results?|tool_use)\b/i,
  /^\s*(?:HTTP\/[\d.]+ \d{3}\b|exit code:? \d+|\[?\d{4}-\d\d-\d\d[T ][\d:.,]+Z?\]? (?:INFO|DEBUG|WARN|ERROR|TRACE)\b)/i,
  /^\s*(?:<!doctype html|<html\b|<\?xml\b)/i,
  /^\s*(?:[0-9a-f]{32,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[A-Za-z0-9+/]{120,}={0,2})\s*$/,
]
/** True for output of machines: markers, logs, dumps, or text with hardly any letters. */
function isNoise(text: string): boolean {
  const head = text.slice(0, mostLine)
  if (noises.some((pattern) => pattern.test(head))) return true
  const letters = head.match(/[\p{L}\p{N}]/gu)?.length ?? 0
  return head.length > 40 && letters * 2 < head.replaceAll(/\s/g, '').length
}
