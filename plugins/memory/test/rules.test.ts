import assert from 'node:assert/strict'
import { test } from 'node:test'
import { countingTurns } from '#testing'
import { compare, Writer } from '../bank/write.ts'
import { asksForNow, asksForPast, timesIn } from '../text/dates.ts'
import { attributeOf, attributesIn, factOf } from '../text/facts.ts'
import { junkOf, statementsOf } from '../text/statements.ts'
import { languageOf, wordsOf } from '../text/words.ts'

test('what is worth keeping is kept, statement by statement, without courtesies and roles', () => {
  for (const [text, content] of [
    ['Hi there! My name is Ann. Thanks a lot!', 'My name is Ann.'],
    ['User: I moved to Berlin in May.\nAssistant: Great! How can I help you today?', 'I moved to Berlin in May.'],
    ['Ann: Hey Bob! How are you? I bought a red bike.', 'Ann: I bought a red bike.'],
    ['Hallo! Ich wohne in Köln. Danke schön!', 'Ich wohne in Köln.'],
    ['¡Hola! Vivo en Madrid. Gracias.', 'Vivo en Madrid.'],
    ['Привет! Я живу в Москве. Спасибо!', 'Я живу в Москве.'],
    ['你好！我住在上海。谢谢！', '我住在上海。'],
    ['- I like tea\n- I like tea\n- I hate coffee', 'I like tea\nI hate coffee'],
    ['system: You are a helpful assistant.\nuser: My dog is called Rex.', 'My dog is called Rex.'],
    [
      '<recalled_memories>\n- (2026-01-01) Ann likes tea.\n</recalled_memories>\n\nI like coffee now.',
      'I like coffee now.',
    ],
  ] as const)
    assert.deepEqual(statementsOf(text), { content }, text)
})

test('what is not worth keeping is refused by what it is', () => {
  for (const [text, junk] of [
    ['  \n ', 'empty'],
    ['Hello!', 'greeting'],
    ['Thanks, Ann! See you soon.', 'greeting'],
    ['你好！', 'greeting'],
    ['Guten Morgen!', 'greeting'],
    ['You are a helpful assistant that answers questions about cars.', 'system_prompt'],
    ['Du bist ein hilfreicher Assistent für Autos.', 'system_prompt'],
    ['你是一个有用的助手。', 'system_prompt'],
    [
      `# Rules\n${'You must be brief. Never lie. Always respond in JSON. Do not guess. Your task is to help. '.repeat(4)}`,
      'system_prompt',
    ],
    ['{"ok": true, "rows": [1, 2, 3]}', 'tool_noise'],
    ['Traceback (most recent call last):\n  File "x.py", line 1', 'tool_noise'],
    ['TypeError: x is not a function\n    at f (/a/b.js:1:2)\n    at g (/a/b.js:3:4)', 'tool_noise'],
    ['tool: 42 rows in 3 ms', 'tool_noise'],
    ['<recalled_memories>\n- (2026-01-01) Ann likes tea.\n</recalled_memories>', 'recalled'],
  ] as const)
    assert.deepEqual(statementsOf(text), { junk }, text)
  for (const text of [
    'Ann likes tea.',
    'Yes, my flight leaves at 9.',
    'Thanks to Bob I found a flat.',
    'You are the best man at my wedding.',
  ])
    assert.ok('content' in statementsOf(text), text)
  assert.equal(junkOf('{"a":1}'), 'tool_noise')
  assert.equal(junkOf('{curly} braces are what Ann likes most'), undefined)
})

test('a statement of one thing at a time is known by its subject and attribute, in five languages', () => {
  const same = (...statements: string[]): void => {
    const [first, ...others] = statements.map((one) => factOf(one)?.key)
    assert.ok(first, statements[0])
    for (const [i, key] of others.entries()) assert.equal(key, first, statements[i + 1])
  }
  same(
    'Ann lives in Berlin.',
    'Ann now lives in Munich',
    'Ann moved to Rome.',
    'Ann: I live in Oslo.',
    'Ann has just moved to Bonn.',
  )
  same("Ann's favorite color is blue.", 'Ann: My favourite color is red.'.replace('My favourite', "Ann's favorite"))
  same('My email is a@b.c', 'my email is now x@y.z')
  same('The deadline is Friday.', 'The deadline is now Monday.')
  same('Ich wohne in Köln.', 'Ich wohne jetzt in Bonn.', 'Ich bin nach Kiel gezogen.')
  same('Mi dirección es Calle Mayor 1.', 'Mi dirección es Gran Vía 2')
  same('Я живу в Москве.', 'Я теперь живу в Казани.')
  same('我住在上海。', '我现在住在北京。')
  for (const other of [
    'Ann likes tea.',
    'Ann met Bob in Berlin.',
    'The dog is brown.',
    'Ann lives in Berlin. She likes it.\nMuch.',
  ])
    assert.equal(factOf(other), undefined, other)
  assert.notEqual(factOf('Ann lives in Berlin.')?.key, factOf('Bob lives in Berlin.')?.key)
})

test('statements are the same, newer, or stand beside each other', () => {
  const one = (content: string, fact?: string) => ({
    content,
    essence: content
      .toLowerCase()
      .replaceAll(/[^a-z0-9 ]/g, '')
      .split(' ')
      .filter((word) => !['a', 'the', 'not', 'does'].includes(word)),
    fact,
  })
  assert.equal(compare(one('Ann likes green tea'), one('ann likes the green tea!')), 'same')
  assert.equal(compare(one('Ann likes green tea'), one('Ann likes green tea much')), 'same')
  assert.equal(compare(one('Ann likes green tea much'), one('Ann likes green tea')), 'newer')
  assert.equal(compare(one('Ann does not like green tea'), one('Ann like green tea')), 'newer')
  assert.equal(compare(one('Ann loves Bob and Eve'), one('Bob loves Ann and Eve')), 'other')
  assert.equal(compare(one('Ann paid Bob 20 euros'), one('Ann paid Bob 30 euros')), 'other')
  assert.equal(compare(one('Ann met Bob in Rome in 2024'), one('Ann met Bob in Rome')), 'other')
  assert.equal(compare(one('Ann lives in Rome', 'ann|home'), one('Ann lives in Berlin', 'ann|home')), 'newer')
  assert.equal(compare(one('Ann lives in Rome', 'ann|home'), one('Ann works in Berlin', 'ann|job')), 'other')
  // A word counts as often as it is there.
  assert.equal(compare(one('go 7 and 7 then stop there'), one('go 7 and then stop there')), 'other')
})

test('what is compared takes a time that grows with its length, however many of the words are others', () => {
  const words = (word: string, count: number): string[] => Array<string>(count).fill(word)
  const [first, last] = [words('one', 30_000), words('two', 450_000)]
  const statement = (...essence: string[][]) => ({ content: '', essence: essence.flat() })
  const long = statement(first, words('other', 150_000), last)
  assert.equal(compare(long, statement(first, last)), 'newer')
  assert.equal(compare(statement(first, last), long), 'same')
})

test('others have their turns while a long statement is compared with those that are near', async () => {
  const statement = (letter: string): string => `${letter}。`.repeat(4_000)
  const near = Array.from('甲乙丙丁戊己庚', (letter) => ({
    id: letter,
    content: statement(letter),
    source: 'curated',
    fact: null,
    at: '2026-01-01T00:00:00Z',
  }))
  const parts = {
    database: { batch: async () => [[], near, [], []] },
    stems: { of: async () => new Map() },
    metrics: { written() {} },
  } as unknown as ConstructorParameters<typeof Writer>[0]
  const { value: made, turns } = await countingTurns(() =>
    new Writer(parts).create('acme', 'helper', { processedContent: statement('庚') }),
  )
  assert.deepEqual(made, { stored: false, reason: 'duplicate', id: '庚' })
  assert.ok(turns >= near.length, String(turns))
})

test('times are understood from where they are said, and questions ask for what statements have', () => {
  const now = new Date('2026-05-13T10:00:00Z')
  const meets = (said: string, asked: string, language: 'en' | 'de' | 'es' | 'ru' | 'zh' = 'en'): boolean => {
    const terms = new Set(timesIn(said, language, now).terms)
    return timesIn(asked, language, now, true).terms.some((term) => terms.has(term))
  }
  for (const [said, asked] of [
    ['I went there yesterday.', 'What happened on 12 May 2026?'],
    ['We met on 2026-04-03.', 'Whom did I meet in April 2026?'],
    ['We met on April 3rd, 2026.', 'What was on 3 April?'],
    ['Two weeks ago I fell.', 'What happened on 2026-04-29?'],
    ['It was in March 2025.', 'What happened in 2025?'],
    ['Last week I ran a race.', 'What did I do on May 6, 2026?'],
    ['I saw her on Monday.', 'Whom did I see on 11 May 2026?'],
  ] as const)
    assert.ok(meets(said, asked), `${said} ${asked}`)
  assert.ok(meets('Gestern war ich dort.', 'Was war am 12. Mai 2026?', 'de'))
  assert.ok(meets('Ayer fui al cine.', '¿Qué pasó el 12 de mayo de 2026?', 'es'))
  assert.ok(meets('Вчера мы встретились.', 'Что было 12 мая 2026?', 'ru'))
  assert.ok(meets('昨天我们见面了。', '2026年5月12日发生了什么？', 'zh'))
  assert.ok(!meets('I went there yesterday.', 'What happened on 12 May 2025?'))
  assert.ok(asksForNow('Where does Ann live now?') && !asksForNow('Where did Ann live?'))
  assert.ok(asksForPast('Where did Ann live before?') && !asksForPast('Where does Ann live?'))
})

test('languages are told by script and common words; Chinese is read by pairs of characters', () => {
  assert.deepEqual(
    [
      'Where is the house of Ann?',
      'Wo ist das Haus von Ann?',
      '¿Dónde está la casa de Ann?',
      'Где дом Анны?',
      '安的房子在哪里？',
    ].map(languageOf),
    ['en', 'de', 'es', 'ru', 'zh'],
  )
  assert.deepEqual(
    wordsOf('北京烤鸭 v2.5 Ann').map(({ text }) => text),
    ['北京', '京烤', '烤鸭', 'v2', '5', 'ann'],
  )
})

test('what a question asks for is found in a statement of it in other words', () => {
  assert.equal(attributeOf('live'), 'home')
  assert.deepEqual(attributesIn('Ann moved to Munich.\nAnn likes tea.\nThe deadline is Friday.'), ['home', 'deadline'])
})

test('no text takes long, however it is made', () => {
  // A pattern that backtracks over such a text would take minutes here, and block the event loop.
  for (const part of [
    ' ',
    '\n',
    '. ',
    'A ',
    'Ab:',
    '{"a":',
    '\n at x (',
    'may 5 ',
    'last ',
    '; A',
    'the of is ',
    '<recalled_memories>',
  ]) {
    const text = part.repeat(32_000 / part.length)
    statementsOf(`a${text}b`)
    junkOf(`a${text}b`)
    timesIn(text.slice(0, 8_000), 'en', new Date())
    attributesIn(text.slice(0, 8_000))
  }
})
