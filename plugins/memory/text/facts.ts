import { bare, speakerOf } from './statements.ts'

/**
 * Properties with one value at a time, so that a new value supersedes the old one. The words of five languages map to one name. Properties with
 * several values (friends, hobbies, likes) are not listed, because all of their values are kept.
 */
const single: ReadonlyMap<string, string> = new Map(
  Object.entries({
    address: 'address adresse dirección адрес 地址 住址',
    age: 'age alter edad возраст 年龄',
    birthday: 'birthday geburtstag cumpleaños 生日',
    budget: 'budget presupuesto бюджет 预算',
    city: 'city hometown stadt heimatstadt ciudad город 城市 家乡',
    color: 'color colour farbe цвет 颜色',
    company: 'company employer firma arbeitgeber empresa компания 公司',
    currency: 'currency währung moneda валюта 货币',
    deadline: 'deadline frist abgabetermin plazo срок 截止日期',
    doctor: 'doctor dentist arzt zahnarzt médico dentista врач 医生',
    email: 'email e-mail mail correo почта 邮箱',
    job: 'job role title occupation profession position beruf stelle trabajo puesto profesión должность работа профессия 职业 职位',
    language: 'language sprache idioma язык 语言',
    location: 'location venue place ort lugar место 地点',
    manager: 'manager boss supervisor lead chef chefin vorgesetzter jefe jefa начальник руководитель 经理 老板',
    name: 'name nickname spitzname nombre apodo имя 名字 昵称',
    number: 'number nummer número номер 号码',
    owner: 'owner besitzer eigentümer dueño владелец 负责人',
    partner: 'husband wife spouse partner mann frau ehemann ehefrau esposo esposa marido муж жена 丈夫 妻子',
    password: 'password passwort contraseña пароль 密码',
    phone: 'phone telephone handy telefon telefonnummer teléfono телефон 电话',
    plan: 'plan tier tarif план тариф 套餐',
    price: 'price rate fee rent salary preis miete gehalt precio alquiler salario цена зарплата 价格 工资',
    school: 'school university schule universität escuela universidad школа университет 学校 大学',
    size: 'size größe talla размер 尺码',
    status: 'status state estado статус 状态',
    time: 'time date uhrzeit termin datum hora fecha время дата 时间 日期',
    timezone: 'timezone zeitzone huso 时区',
    version: 'version versión версия 版本',
    weight: 'weight height gewicht peso вес рост 体重 身高',
  }).flatMap(([name, words]) => words.split(' ').map((word): [string, string] => [word, name])),
)

/** Verbs that state a property without naming it, for two of the properties. */
const verbs: ReadonlyMap<string, string> = new Map(
  Object.entries({
    home: 'live lives living lived reside resides move moves moved home wohne wohnst wohnt wohnen lebe lebt zieht vive vivo vives vivir viven живу живет живёт живут переехал переехала 住在 住哪',
    company:
      'work works working worked employer employed job arbeite arbeitet arbeiten trabajo trabaja trabajas trabajar работаю работает работать 工作 上班',
  }).flatMap(([name, words]) => words.split(' ').map((word): [string, string] => [word, name])),
)

/** The property that a word of a question asks for; undefined for most words. */
export const attributeOf = (word: string): string | undefined => verbs.get(word) ?? single.get(word)

/** The most statements of a content that are searched for facts. */
const mostStated = 12
/** The properties with one value at a time that the statements of a content are about. */
export function attributesIn(content: string): string[] {
  const lines = content.split('\n', mostStated)
  return [...new Set(lines.flatMap((line) => factOf(line)?.key.split('|')[1] ?? []))]
}

const self = new Set('i my me mine ich mein meine meiner yo mi mis я мой моя моё мое 我 我的'.split(' '))
/** Words between a property and its value that say when, not what. */
const since =
  '(?:now |currently |nowadays |actually |no longer |jetzt |inzwischen |nun |ahora |actualmente |теперь |сейчас )?'
const subject = "(?<subject>[\\p{L}\\p{N}' .-]{1,60}?)"
const value = '(?<value>(?:[^.!?。！？]|\\.(?=\\S)){1,120}?)'
const is = `(?:is|are|was set to|has been changed to|changed to|lautet|ist|sind|es|son|это|[-—–]|теперь)`

interface Form {
  readonly pattern: RegExp
  /** The property that the form states. It is set if no word of the form names the property. */
  readonly attribute?: string
}
const form = (source: string, attribute?: string): Form => ({
  pattern: new RegExp(`^${source}[.!。！]?$`, 'iu'),
  ...(attribute === undefined ? {} : { attribute }),
})
const forms: readonly Form[] = [
  form(
    `${subject} ${since}(?:lives?|resides?|am living|is living|(?:has |have )?(?:just )?(?:moved|relocated)|am based|is based) ${since}(?:in|to) ${value}`,
    'home',
  ),
  form(
    `${subject} ${since}(?:works?|am working|is working|(?:has |have )?(?:just )?(?:started|start)(?: working)?) ${since}(?:at|for) ${value}`,
    'company',
  ),
  form(`${subject} (?:has |have )?(?:just )?joined ${value}`, 'company'),
  form(`${subject} ${since}(?:works?|am working|is working) ${since}as ${value}`, 'job'),
  form(`${subject} (?:is|am|turned) ${since}(?<value>\\d{1,3}) years old`, 'age'),
  form(`${subject}(?:'s|’s)? favou?rite (?<attribute>[\\p{L} ]{2,40}?) (?:is|are) ${since}${value}`),
  form(`(?:the )?${subject}(?:'s|’s) (?<attribute>[\\p{L}-]{2,30}) ${is} ${since}${value}`),
  form(`(?<subject>my|mein|meine|mi|мой|моя|моё|мое) (?<attribute>[\\p{L}-]{2,30}) ${is} ${since}${value}`),
  form(
    `(?:the|der|die|das|el|la) (?<subject>[\\p{L}\\p{N} -]{0,40}?) ?(?<attribute>[\\p{L}-]{2,30}) ${is} ${since}${value}`,
  ),
  form(
    `(?:the|der|die|das|el|la) (?<attribute>[\\p{L}-]{2,30}) (?:of|for|von|de|del) (?:the )?${subject} ${is} ${since}${value}`,
  ),
  form(`${subject} ${since}(?:wohn(?:e|t)|leb(?:e|t)) ${since}in ${value}`, 'home'),
  form(`${subject} (?:bin|ist) (?:jetzt )?nach ${value} (?:um)?gezogen`, 'home'),
  form(`${subject} ${since}arbeite[t]? ${since}(?:bei|für) ${value}`, 'company'),
  form(`(?:${subject} )?${since}(?:vivo|vive|me mudé|se mudó) ${since}(?:en|a) ${value}`, 'home'),
  form(`(?:${subject} )?${since}trabaj[oa] ${since}(?:en|para) ${value}`, 'company'),
  form(`${subject} ${since}(?:живу|живёт|живет|переехала?|переехал) ${since}(?:в|во|на) ${value}`, 'home'),
  form(`${subject} ${since}работа(?:ю|ет) ${since}(?:в|во|на) ${value}`, 'company'),
  form(
    '(?<subject>[\\p{Script=Han}\\p{L}]{1,12}?)(?:现在|目前|已经)?(?:住在|搬到了?|搬去了?)(?<value>.{1,40})',
    'home',
  ),
  form('(?<subject>[\\p{Script=Han}\\p{L}]{1,12}?)(?:现在|目前)?在(?<value>.{1,40})(?:工作|上班)', 'company'),
  form(
    '(?<subject>[\\p{Script=Han}\\p{L}]{1,12}?)的(?<attribute>[\\p{Script=Han}]{1,6})(?:现在|改)?(?:是|为|成)(?<value>.{1,40})',
  ),
]

export interface Fact {
  /** Subject and property as one key. Every wording that is understood gives the same key. */
  readonly key: string
  readonly value: string
}

/** The fact that a content states about a property with one value at a time; undefined for anything else. */
export function factOf(content: string): Fact | undefined {
  const line = content.trim()
  if (line.length > 240 || line.includes('\n')) return undefined
  const said = bare(line).replace(/^(?:(?:actually|update|correction|by the way|btw|now|fyi)[,:] )/i, '')
  for (const { pattern, attribute } of forms) {
    const groups = pattern.exec(said)?.groups
    if (!groups) continue
    const favorite = /favou?rite/i.test(said) && groups['attribute'] ? `favorite ${groups['attribute']}` : undefined
    const about = attribute ?? favorite ?? single.get((groups['attribute'] ?? '').toLowerCase())
    if (about === undefined) continue
    const who = whoOf(groups['subject'] ?? '', speakerOf(line))
    return { key: `${who}|${about}`.toLowerCase().replaceAll(/\s+/g, ' ').slice(0, 200), value: groups['value'] ?? '' }
  }
  return undefined
}

/** "I" and similar words stand for the speaker. */
function whoOf(subject: string, speaker: string | undefined): string {
  const plain = subject
    .trim()
    .toLowerCase()
    .replace(/^(?:the|der|die|das|el|la) /, '')
  return plain === '' || self.has(plain) ? (speaker ?? 'self') : plain
}

const longestTold = 400
/** Words of the first person. For languages whose verbs show the person, some verb forms as well. */
const ofSelf =
  /(?<!\p{L})(?:i|i'm|i've|i’m|i’ve|my|me|mine|we|we're|we’re|our|us|ich|mein\p{L}{0,2}|mir|mich|wir|uns(?:er\p{L}{0,2})?|yo|mi|mis|me|nosotros|nuestr[oa]s?|vivo|trabajo|prefiero|tengo|soy|estoy|я|мо[йяёеи]|мне|меня|мы|наш\p{L}?|у нас)(?!\p{L})|[我咱]/iu
/** A request or a question: it belongs to the conversation and says nothing about the person. */
const request =
  /^[^\p{L}]*(?:(?:please|pls|bitte|por favor|пожалуйста)(?!\p{L})|[请帮]|(?:can|could|would|will|do|does|did|is|are|what|who|where|when|why|how|which|should|may|kannst|könntest|können|was|wer|wo|wann|warum|wie|welche|puedes|podrías|qué|quién|cómo|cuándo|dónde|por qué|что|кто|где|когда|почему|как|можешь)(?!\p{L})|(?:tell|show|write|give|make|help|explain|find|create|list|translate|summari[sz]e|fix|draft|generate|let|check|look|search|remind|erkläre?|schreib|zeig|hilf|gib|escribe|dime|ayúdame|explica|напиши|скажи|покажи|помоги|объясни)(?!\p{L}))|(?<!\p{L})(?:i|we)(?:'d| would)? (?:want|need|like|have) (?:you to|to (?:know|ask|see|understand)|a question|your help|help)(?!\p{L})|(?<!\p{L})(?:i|we) (?:do not|don't|don’t) (?:understand|know|get)(?!\p{L})|[?？]\s*$/iu

/** True for a statement that people make to an agent about themselves and their things. Questions, orders and pasted text are not such statements. */
export function isTold(sentence: string): boolean {
  const text = bare(sentence)
  return text.length <= longestTold && !request.test(text) && (ofSelf.test(text) || factOf(text) !== undefined)
}
