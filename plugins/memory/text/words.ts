/** Supported languages. PostgreSQL provides stems and stop words for all but `zh`, which is found by pairs of characters. */
export const languages = ['en', 'de', 'es', 'ru', 'zh'] as const
export type Language = (typeof languages)[number]

const ideograph = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u
const cyrillic = /\p{Script=Cyrillic}/gu

/** Words that nearly every sentence of a language has, and few of another one. */
const common: Readonly<Record<'en' | 'de' | 'es', ReadonlySet<string>>> = {
  en: new Set(
    'the and is are was were of to in that it for with on as at by this my your his her their our we they you i have has had not but from will would can about what when where who which how did do does been be'.split(
      ' ',
    ),
  ),
  de: new Set(
    'der die das und ist sind war waren nicht ein eine einen einem einer ich du er sie wir ihr mit auf für von zu im am den dem des hat habe haben wird werden auch sich bei nach aus als wie was wann wo wer welche welcher mein meine sein seine ihre'.split(
      ' ',
    ),
  ),
  es: new Set(
    'el la los las un una unos unas y es son era fue no que en de del con por para su sus mi mis tu se lo le al como qué cuándo dónde quién cuál está estaba tiene tengo ha han yo me nos muy también'.split(
      ' ',
    ),
  ),
}

/** The most likely language of a text; English if nothing indicates a language. */
export function languageOf(text: string): Language {
  const head = text.slice(0, 4_000)
  const letters = head.match(/\p{L}/gu)?.length ?? 0
  const ideographs = head.match(new RegExp(ideograph, 'gu'))?.length ?? 0
  if (ideographs * 3 >= letters && ideographs > 0) return 'zh'
  if ((head.match(cyrillic)?.length ?? 0) * 2 >= letters && letters > 0) return 'ru'
  const counts = { en: 0, de: 0, es: 0 }
  for (const [word] of head.toLowerCase().matchAll(/\p{L}+/gu))
    for (const language of ['en', 'de', 'es'] as const) if (common[language].has(word)) counts[language]++
  if (/[äöüß]/i.test(head)) counts.de += 1
  if (/[ñ¿¡]/i.test(head)) counts.es += 2
  return counts.de > counts.en && counts.de >= counts.es ? 'de' : counts.es > counts.en ? 'es' : 'en'
}

/** One word of a text, in lower case. */
export interface Word {
  readonly text: string
  /** True if the word has a capital letter or a digit, so that it may be a name. */
  readonly named: boolean
  /** True at the beginning of a sentence, where every word has a capital letter. */
  readonly initial: boolean
  /** True for a pair of adjacent ideographs, or for a single one that stands alone. */
  readonly ideographs: boolean
}

/** Matches the text before the first word of a sentence. */
const begins = /(?:^|[.!?…:;。！？\n])[\s"'“‘(¿¡*-]*$/u
/** Chinese characters that separate words. */
const between = /[的了吗呢吧啊呀么嘛们]/u
const asking = new Set(['什么', '哪里', '哪儿', '哪个', '怎么', '为什', '多少', '时候', '是谁', '几点', '么时'])

/** The words of a text, in order. Numbers stay whole; runs of ideographs become pairs. */
export function wordsOf(text: string): Word[] {
  const words: Word[] = []
  const plainText = text.normalize('NFKC')
  for (const { 0: token, index } of plainText.matchAll(/\p{N}+(?:[.,:]\p{N}+)+|[\p{L}\p{M}\p{N}]+/gu)) {
    if (ideograph.test(token)) addIdeographs(token, words)
    else {
      const plain = /^[\p{N}.,:]+$/u.test(token) ? token.replaceAll(',', '') : token
      words.push({
        text: plain.toLowerCase(),
        named: /\p{Lu}|\p{N}/u.test(token),
        initial: begins.test(plainText.slice(Math.max(0, index - 4), index)),
        ideographs: false,
      })
    }
  }
  return words
}

/** The words of a text without punctuation and capitals, for comparison. */
export const wordsAlone = (text: string): string =>
  wordsOf(text)
    .map((word) => word.text)
    .join(' ')

function addIdeographs(token: string, words: Word[]): void {
  // Latin letters and digits beside ideographs are words of their own.
  for (const part of token.match(
    /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]+|[^\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]+/gu,
  ) ?? []) {
    if (!ideograph.test(part)) {
      words.push({ text: part.toLowerCase(), named: true, initial: false, ideographs: false })
      continue
    }
    for (const run of part.split(between)) {
      const characters = Array.from(run)
      if (characters.length === 1) words.push({ text: run, named: false, initial: false, ideographs: true })
      for (let i = 0; i + 1 < characters.length; i++) {
        const pair = characters[i]! + characters[i + 1]!
        if (!asking.has(pair)) words.push({ text: pair, named: false, initial: false, ideographs: true })
      }
    }
  }
}

/** The approximate number of tokens that a model counts: one for four characters, and one for each ideograph. */
export function tokensOf(text: string): number {
  const ideographs = text.match(new RegExp(ideograph, 'gu'))?.length ?? 0
  return Math.ceil((text.length - ideographs) / 4) + ideographs
}
