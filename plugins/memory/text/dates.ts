import type { Language } from './words.ts'

// Times in texts, as terms: `#2026-05-07`, `#2026-05`, `#2026`, and without a year `#-05-07` and `#-05`.

const dayMs = 24 * 3_600_000

const months: readonly string[][] = [
  'january jan januar jänner enero января январь январе'.split(' '),
  'february feb februar febrero февраля февраль феврале'.split(' '),
  'march mar märz marzo марта март марте'.split(' '),
  'april apr abril апреля апрель апреле'.split(' '),
  'may mai mayo мая май мае'.split(' '),
  'june jun juni junio июня июнь июне'.split(' '),
  'july jul juli julio июля июль июле'.split(' '),
  'august aug agosto августа август августе'.split(' '),
  'september sep sept septiembre сентября сентябрь сентябре'.split(' '),
  'october oct oktober okt octubre октября октябрь октябре'.split(' '),
  'november nov noviembre ноября ноябрь ноябре'.split(' '),
  'december dec dezember dez diciembre декабря декабрь декабре'.split(' '),
]
const monthOf: ReadonlyMap<string, number> = new Map(months.flatMap((names, i) => names.map((name) => [name, i + 1])))
const monthWords = [...monthOf.keys()].sort((a, b) => b.length - a.length).join('|')
const weekdays: readonly string[][] = [
  'sunday sonntag domingo воскресенье'.split(' '),
  'monday montag lunes понедельник'.split(' '),
  'tuesday dienstag martes вторник'.split(' '),
  'wednesday mittwoch miércoles среду среда'.split(' '),
  'thursday donnerstag jueves четверг'.split(' '),
  'friday freitag viernes пятницу пятница'.split(' '),
  'saturday samstag sábado субботу суббота'.split(' '),
]
const weekdayOf: ReadonlyMap<string, number> = new Map(weekdays.flatMap((names, i) => names.map((name) => [name, i])))
const weekdayWords = [...weekdayOf.keys()].join('|')

const numbers: ReadonlyMap<string, number> = new Map(
  'one two three four five six seven eight nine ten eleven twelve'.split(' ').map((word, i) => [word, i + 1]),
)
const edge = '(?<![\\p{L}\\p{N}])'
const end = '(?![\\p{L}\\p{N}])'
/** A pattern for whole words. `ideographs` is matched anywhere, because ideographs are not separated by spaces. */
const exp = (source: string, ideographs?: string): RegExp =>
  new RegExp(edge + source + end + (ideographs ? `|${ideographs}` : ''), 'giu')

const iso = exp('(\\d{4})-(\\d{2})(?:-(\\d{2}))?')
const dotted = exp('(\\d{1,2})[./](\\d{1,2})[./](\\d{4})')
const chinese = /(?:(\d{4})年)?(\d{1,2})月(?:(\d{1,2})[日号])?/gu
const dayMonth = exp(`(\\d{1,2})(?:st|nd|rd|th|\\.)?(?: of| de)? (${monthWords})\\.?(?:,? (?:de |of )?(\\d{4}))?`)
const monthDay = exp(`(${monthWords})\\.? (\\d{1,2})(?:st|nd|rd|th)?(?:,? (\\d{4}))?`)
const monthYear = exp(`(${monthWords})\\.?,? (?:de |of )?(\\d{4})`)
const monthAlone = exp(`(?:in|im|en|в|during|last|this|next|since|early|late|mid) ((?:${monthWords}))`)
const year = exp('((?:19|20)\\d{2})')
/** Words for a day, by how far it is from today. */
const days: readonly (readonly [number, RegExp])[] = [
  [0, exp('(?:today|tonight|this morning|this evening|heute|hoy|сегодня)', '今天')],
  [-1, exp('(?:yesterday|last night|gestern|ayer|вчера)', '昨天')],
  [-2, exp('(?:the day before yesterday|vorgestern|anteayer|позавчера)', '前天')],
  [1, exp('(?:tomorrow|morgen|mañana|завтра)', '明天')],
]
const ago = exp(
  '(\\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve) (day|week|month|year)s? ago',
)
const vor = exp('vor (\\d{1,3}|einem|einer|zwei|drei|vier) (tag|woche|monat|jahr)(?:en|n|e)?')
const lastUnit = exp(
  '(?:(last|previous|this|next|past)|(letzte[nrs]?|vorige[nrs]?)|(diese[nrs]?)|(nächste[nrs]?)|(la próxima|el próximo)|(este|esta)|(прошл(?:ой|ую|ом|ый))|(эт(?:ой|ом|от)|на этой)) (week(?:end)?|month|year|woche|wochenende|monat|jahr|semana|mes|año|недел[юе]|месяце?|год[у]?)',
)
/** Chinese words for weeks, months and years, by their distance from the current one. */
const chineseUnits: readonly (readonly [number, string, RegExp])[] = [
  [-1, 'week', /上(?:个)?(?:周|星期)/gu],
  [0, 'week', /(?:这|本)(?:个)?(?:周|星期)/gu],
  [1, 'week', /下(?:个)?(?:周|星期)/gu],
  [-1, 'month', /上个?月/gu],
  [0, 'month', /(?:这个|本)月/gu],
  [1, 'month', /下个?月/gu],
  [-1, 'year', /去年/gu],
  [0, 'year', /今年/gu],
  [1, 'year', /明年/gu],
]
const pasada = exp('(semana|mes|año) pasad[oa]')
const lastDay = exp(`(?:(last|this past|this|on|am|el|next) )?(${weekdayWords})`)

export interface Times {
  /** Terms of the days, months and years that the text names. */
  readonly terms: readonly string[]
  /** True if the text names a time by its distance from now. */
  readonly relative: boolean
}

const pad = (n: number): string => String(n).padStart(2, '0')
export const dayTerms = (day: Date): string[] => {
  const [y, m, d] = day.toISOString().slice(0, 10).split('-') as [string, string, string]
  return [`#${y}-${m}-${d}`, `#${y}-${m}`, `#${y}`, `#-${m}-${d}`, `#-${m}`]
}

/**
 * The times that a text names, relative to `now`. For a question (`asking`), a span becomes the terms that cover it most closely: the days of a
 * week, or the month alone. For a statement, each time becomes all of its terms, so that question and statement share terms.
 */
export function timesIn(text: string, language: Language, now: Date, asking = false): Times {
  const found = new FoundTimes(now, asking)
  let rest = text.toLowerCase()
  /** Replaces text that was understood by spaces, so that no later pattern reads it again. */
  const take = (pattern: RegExp, work: (...groups: (string | undefined)[]) => boolean | void): void => {
    rest = rest.replaceAll(pattern, (...args: unknown[]) => {
      const [whole, ...groups] = args.slice(0, -2) as [string, ...(string | undefined)[]]
      return work(...groups) === false ? whole : ' '.repeat(whole.length)
    })
  }
  const number = (digits: string | undefined): number | undefined => (digits ? Number(digits) : undefined)
  take(iso, (y, m, d) => (d ? found.day(Number(y), Number(m), Number(d)) : found.month(Number(y), Number(m))))
  // The day comes first, unless only the other order is a date.
  take(dotted, (x, z, y) =>
    Number(z) > 12 ? found.day(Number(y), Number(x), Number(z)) : found.day(Number(y), Number(z), Number(x)),
  )
  take(chinese, (y, m, d) => (d ? found.day(number(y), Number(m), Number(d)) : found.month(number(y), Number(m))))
  take(dayMonth, (d, m, y) => found.day(number(y), monthOf.get(m!)!, Number(d)))
  take(monthDay, (m, d, y) => found.day(number(y), monthOf.get(m!)!, Number(d)))
  take(monthYear, (m, y) => found.month(Number(y), monthOf.get(m!)!))
  take(monthAlone, (m) => found.month(undefined, monthOf.get(m!)!))
  take(year, (y) => found.year(Number(y)))
  const absolute = found.terms.size
  for (const [distance, pattern] of days) take(pattern, () => found.date(shifted(now, distance)))
  take(ago, (n, unit) => found.ago(numberOf(n!), unit!))
  take(vor, (n, unit) => found.ago(numberOf(n!), { tag: 'day', woche: 'week', monat: 'month', jahr: 'year' }[unit!]!))
  take(lastUnit, (en, lastDe, _thisDe, nextDe, nextEs, _thisEs, lastRu, _thisRu, unit) => {
    const back = en === 'last' || en === 'previous' || en === 'past' || lastDe || lastRu
    found.unit(back ? -1 : en === 'next' || nextDe || nextEs ? 1 : 0, unit!)
  })
  for (const [step, unit, pattern] of chineseUnits) take(pattern, () => found.unit(step, unit))
  take(pasada, (unit) => found.unit(-1, unit!))
  if (language !== 'zh')
    take(lastDay, (which, day) => {
      if (asking && which === undefined) return false
      const distance = (now.getUTCDay() - weekdayOf.get(day!)! + 7) % 7
      const back = distance === 0 && which !== 'on' ? 7 : distance
      found.date(shifted(now, which === 'next' ? 7 - distance : -back))
      return true
    })
  return { terms: [...found.terms], relative: found.terms.size > absolute }
}

/** Collects the terms of times, in the form for a question or for a statement. */
class FoundTimes {
  readonly terms = new Set<string>()
  readonly #now: Date
  readonly #asking: boolean

  constructor(now: Date, asking: boolean) {
    this.#now = now
    this.#asking = asking
  }

  day(y: number | undefined, m: number, d: number): void {
    if (m < 1 || m > 12 || d < 1 || d > 31) return
    if (y !== undefined) return this.date(new Date(Date.UTC(y, m - 1, d)))
    this.terms.add(`#-${pad(m)}-${pad(d)}`)
    if (!this.#asking) this.terms.add(`#-${pad(m)}`)
  }
  date(day: Date): void {
    if (Number.isNaN(day.getTime())) return
    for (const term of this.#asking ? dayTerms(day).slice(0, 1) : dayTerms(day)) this.terms.add(term)
  }
  month(y: number | undefined, m: number): void {
    if (m < 1 || m > 12) return
    if (y !== undefined) this.terms.add(`#${y}-${pad(m)}`)
    if (y !== undefined && !this.#asking) this.terms.add(`#${y}`)
    if (y === undefined || !this.#asking) this.terms.add(`#-${pad(m)}`)
  }
  year(y: number): void {
    this.terms.add(`#${y}`)
  }
  ago(n: number, unit: string): void {
    if (unit === 'day') this.date(shifted(this.#now, -n))
    else if (unit === 'week') this.date(shifted(this.#now, -7 * n))
    else if (unit === 'month') this.#monthAt(-n)
    else this.year(this.#now.getUTCFullYear() - n)
  }
  /** The week, weekend, month or year that is `step` units from the current one. `unit` is a word of any supported language. */
  unit(step: number, unit: string): void {
    const monday = shifted(this.#now, -((this.#now.getUTCDay() + 6) % 7) + 7 * step)
    const isWeek = /^(?:week|woche|semana|недел)/.test(unit)
    if (isWeek) for (const i of /end/.test(unit) ? [5, 6] : [0, 1, 2, 3, 4, 5, 6]) this.date(shifted(monday, i))
    else if (/^(?:month|monat|mes|месяц)/.test(unit)) this.#monthAt(step)
    else this.year(this.#now.getUTCFullYear() + step)
  }
  #monthAt(step: number): void {
    const first = new Date(Date.UTC(this.#now.getUTCFullYear(), this.#now.getUTCMonth() + step, 1))
    this.month(first.getUTCFullYear(), first.getUTCMonth() + 1)
  }
}

const shifted = (day: Date, by: number): Date => new Date(day.getTime() + by * dayMs)
const numberOf = (text: string): number =>
  /^\d+$/.test(text) ? Number(text) : (numbers.get(text) ?? { zwei: 2, drei: 3, vier: 4 }[text] ?? 1)

/** True if a question asks how things are now. Then the newest statement counts most. */
export const asksForNow = (text: string): boolean => nowWords.test(text)
const nowWords = new RegExp(
  `${edge}(?:now|currently|current|latest|newest|most recent|today|still|these days|at the moment|jetzt|aktuell\\p{L}*|derzeit|zurzeit|neueste\\p{L}*|ahora|actual(?:mente)?|сейчас|теперь|последн\\p{L}*)${end}|现在|目前|最近|当前`,
  'iu',
)
/** True if a question asks how things were. Then superseded memories count, too. */
export const asksForPast = (text: string): boolean => pastWords.test(text)
const pastWords = new RegExp(
  `${edge}(?:used to|previous(?:ly)?|formerly|former|originally|before|in the past|back then|früher\\p{L}*|vorher\\p{L}*|ehemalig\\p{L}*|ursprünglich|antes|anterior(?:mente)?|раньше|прежн\\p{L}*|прошл\\p{L}*)${end}|以前|之前|原来|曾经`,
  'iu',
)
