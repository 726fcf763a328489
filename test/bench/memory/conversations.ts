// Conversations that two people have over months, and questions about them: seeded, and the same for every method.

export interface Turn {
  readonly id: string
  readonly sessionId: string
  readonly text: string
  readonly at: string
}
export type Kind = 'single fact' | 'multi-hop' | 'time' | 'update'
export interface Question {
  readonly kind: Kind
  readonly text: string
  /** When it is asked. */
  readonly at: string
  /** The turns without which nobody can answer. */
  readonly evidence: readonly string[]
}
export interface Conversation {
  readonly turns: readonly Turn[]
  readonly questions: readonly Question[]
}

/** Numbers from a seed: mulberry32. */
export function seeded(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

const names =
  'Alice Bruno Carla Derek Elena Farid Greta Hugo Irene Jonas Katya Liam Mona Nils Olga Pavel Quinn Rosa Samir Tessa Umar Vera Wanda Xenia Yusuf Zelda'.split(
    ' ',
  )
const towns = 'Lisbon Oslo Denver Kyoto Quito Dublin Zagreb Cairo Perth Austin Lyon Bergen Tampere Malaga Leeds'.split(
  ' ',
)
const firms = 'Northwind Acorn Bluefin Castor Dynamo Ember Foxglove Granite Harbor Ivory'.split(' ')
const relations = ['sister', 'brother', 'cousin', 'neighbor', 'best friend', 'old roommate', 'aunt', 'coach']

/** Each way to say a thing, and each way to ask for it; most have other words. `{p}` who speaks, `{x}` what is told. */
interface Topic {
  readonly said: readonly string[]
  readonly asked: readonly string[]
  readonly things: readonly string[]
}
const topics: readonly Topic[] = [
  {
    said: [
      'I finally adopted {x} from the shelter.',
      'There is a new member of the family: {x}!',
      'We brought home {x}, and nobody sleeps any more.',
    ],
    asked: ['What animal did {p} adopt?', 'Which pet lives with {p}?', 'What new family member does {p} have?'],
    things: ['a grey kitten', 'an old beagle', 'two rabbits', 'a blind parrot', 'a tortoise', 'a ferret'],
  },
  {
    said: [
      'I have been learning {x} since the winter.',
      'My evenings belong to {x} these days.',
      'I signed up for lessons in {x}, and I love it.',
    ],
    asked: ['What is {p} learning?', 'Which hobby did {p} take lessons in?', 'What does {p} practice in the evenings?'],
    things: ['the cello', 'pottery', 'archery', 'sign language', 'watercolor painting', 'beekeeping', 'tap dancing'],
  },
  {
    said: [
      'The doctor says I must avoid {x} from now on.',
      'It turns out that {x} makes me sick.',
      'I cannot eat {x}, my skin goes red at once.',
    ],
    asked: ['What is {p} allergic to?', 'Which food must {p} avoid?', 'What does {p} not tolerate?'],
    things: ['peanuts', 'shellfish', 'gluten', 'strawberries', 'mustard', 'cashews'],
  },
  {
    said: [
      'I am reading {x} and cannot put it down.',
      'The book on my table is {x} right now.',
      'Somebody lent me {x}; what a novel!',
    ],
    asked: ['Which book is {p} reading?', 'What novel does {p} like?', 'What was lent to {p}?'],
    things: ['Middlemarch', 'The Leopard', 'Solaris', 'Beloved', 'Stoner', 'The Dispossessed'],
  },
  {
    said: [
      'For my birthday I got {x}, can you believe it?',
      'They surprised me with {x} as a present.',
      'I unwrapped {x} this morning and cried a little.',
    ],
    asked: ['What present did {p} get?', 'What was {p} given for the birthday?', 'Which gift surprised {p}?'],
    things: [
      'a telescope',
      'a vintage camera',
      'hiking boots',
      'a sewing machine',
      'a canoe',
      'noise-cancelling headphones',
    ],
  },
  {
    said: [
      'I volunteer at {x} every other weekend.',
      'My Saturdays go to {x}, they need every hand.',
      'I started to help out at {x}.',
    ],
    asked: ['Where does {p} volunteer?', 'Where does {p} help out?', 'What does {p} do on Saturdays for others?'],
    things: [
      'the soup kitchen',
      'the animal hospital',
      'a community garden',
      'the public library',
      'a hospice',
      'the lifeboat station',
    ],
  },
  {
    said: [
      'My dream is to open {x} one day.',
      'If money were no matter I would run {x}.',
      'I keep drawing plans for {x}.',
    ],
    asked: [
      'What does {p} dream of opening?',
      'What would {p} run if money did not matter?',
      'Which business does {p} plan?',
    ],
    things: ['a bakery', 'a bookshop', 'a climbing gym', 'a jazz bar', 'a bicycle workshop', 'a tea house'],
  },
]
/** What happened on a day: how it is told then, and how one asks for its day. */
const events: readonly { readonly said: readonly string[]; readonly asked: string }[] = [
  {
    said: ['I ran my first marathon {when}!', '{when} I crossed the line of a marathon, still limping.'],
    asked: 'When did {p} run the marathon?',
  },
  {
    said: ['I broke my wrist on the ice {when}.', '{when} I slipped and my wrist is in a cast.'],
    asked: 'When did {p} break the wrist?',
  },
  {
    said: ['I gave a talk about glaciers {when}.', 'My glacier talk was {when}, and the hall was full.'],
    asked: 'When did {p} give the talk on glaciers?',
  },
  {
    said: ['We sold the old piano {when}.', '{when} somebody came for the piano.'],
    asked: 'On what date was the piano of {p} sold?',
  },
  {
    said: ['I passed the driving test {when}.', '{when} the examiner smiled: I passed the driving test.'],
    asked: 'When did {p} pass the driving test?',
  },
  {
    said: ['I painted the kitchen yellow {when}.', 'The kitchen is yellow since {when}.'],
    asked: 'When did {p} paint the kitchen?',
  },
  {
    said: ['I met my favorite author at the fair {when}.', '{when} I shook hands with my favorite author.'],
    asked: 'When did {p} meet the favorite author?',
  },
]
const whens: readonly (readonly [string, number])[] = [
  ['yesterday', 1],
  ['two days ago', 2],
  ['today', 0],
  ['a week ago', 7],
  ['three days ago', 3],
]
/** Things that change, each told anew in other words. */
const changes: readonly {
  readonly said: readonly string[]
  readonly asked: readonly string[]
  readonly values: readonly string[]
}[] = [
  {
    said: ['I live in {x} these days.', 'I moved to {x}, boxes everywhere.', 'Home is {x} for me now.'],
    asked: ['Where does {p} live now?', 'In which city is {p} at home currently?'],
    values: towns,
  },
  {
    said: ['I work at {x} now.', 'I started a new job at {x}.', '{x} hired me, my first week is over.'],
    asked: ['Where does {p} work now?', 'Who is the current employer of {p}?'],
    values: firms,
  },
  {
    said: ['I drive to the office by {x}.', 'I changed my commute to {x}.', 'These days I commute by {x}.'],
    asked: ['How does {p} commute currently?', 'How does {p} get to the office now?'],
    values: ['tram', 'cargo bike', 'ferry', 'motor scooter', 'night bus'],
  },
]
const chatter = [
  'Hey {o}! Good to hear from you.',
  'That sounds wonderful, {o}!',
  'How was your week, {o}?',
  'I know exactly what you mean.',
  'The weather has been awful here, rain and rain again.',
  'Did you sleep at all? You look tired on the photos.',
  'My phone died twice today, sorry for the silence.',
  'We should cook together again soon.',
  'Work was long, and the train was late again.',
  'I watched a film last night and fell asleep in the middle.',
  'The coffee machine at work is broken, tragedy!',
  'Thanks, that means a lot to me.',
  'Tell me more, I am curious!',
  'Let us talk again on the weekend.',
  'I cleaned the whole flat, it took hours.',
  'My neighbor plays the drums at night.',
  'I bought too many plants at the market.',
  'The garden needs water, it is so dry.',
  'I am proud of you, really.',
  'What are you doing on the holidays?',
  'I made soup, too much of it as always.',
  'My back hurts from all the sitting.',
  'The new series everybody talks about is boring.',
  'I lost my keys and found them in the fridge.',
]

const sessionsOf = 22
const dayMs = 24 * 3_600_000

/** One conversation with its questions. */
export function conversation(number: number, seed: number): Conversation {
  const maker = new Maker(number, seeded(seed * 1_000 + number))
  return maker.make()
}

class Maker {
  readonly #random: () => number
  readonly #number: number
  readonly #people: readonly [string, string]
  readonly #sessions: { at: number; lines: { who: string; text: string; id: string }[] }[]
  readonly #questions: Question[] = []
  #count = 0

  constructor(number: number, random: () => number) {
    this.#number = number
    this.#random = random
    const [a, b] = this.#some(names, 2) as [string, string]
    this.#people = [a, b]
    const begin = Date.UTC(2025, Math.floor(random() * 12), 1 + Math.floor(random() * 27), 18)
    this.#sessions = Array.from({ length: sessionsOf }, (_, i) => ({
      at: begin + i * 9 * dayMs + Math.floor(random() * 5) * dayMs,
      lines: [],
    }))
  }

  make(): Conversation {
    for (const person of this.#people) {
      for (const topic of topics) this.#single(person, topic)
      for (const event of events) this.#time(person, event)
      for (const change of changes) this.#update(person, change)
      for (const relation of this.#some(relations, 5)) this.#multi(person, relation)
    }
    this.#chat()
    const turns = this.#sessions.flatMap(({ at, lines }, s) =>
      lines.map(({ who, text, id }, i): Turn => ({
        id,
        text: `${who}: ${text}`,
        sessionId: `c${this.#number}-s${s}`,
        at: new Date(at + i * 60_000).toISOString(),
      })),
    )
    return { turns, questions: this.#questions }
  }

  #pick<T>(all: readonly T[]): T {
    return all[Math.floor(this.#random() * all.length)]!
  }
  #some<T>(all: readonly T[], count: number): T[] {
    const left = [...all]
    return Array.from({ length: count }, () => left.splice(Math.floor(this.#random() * left.length), 1)[0]!)
  }
  /** Puts a line anywhere into a session; returns its id. */
  #say(session: number, who: string, text: string): string {
    const { lines } = this.#sessions[session]!
    const id = `${this.#number}:${this.#count++}`
    lines.splice(Math.floor(this.#random() * (lines.length + 1)), 0, { who, text, id })
    return id
  }
  #ask(kind: Kind, text: string, evidence: readonly string[]): void {
    const at = new Date(this.#sessions.at(-1)!.at + 3 * dayMs).toISOString()
    this.#questions.push({ kind, text, at, evidence })
  }
  #single(person: string, { said, asked, things }: Topic): void {
    const id = this.#say(
      Math.floor(this.#random() * sessionsOf),
      person,
      this.#pick(said).replace('{x}', this.#pick(things)),
    )
    this.#ask('single fact', this.#pick(asked).replace('{p}', person), [id])
  }
  #time(person: string, { said, asked }: (typeof events)[number]): void {
    const session = Math.floor(this.#random() * sessionsOf)
    const [when, days] = this.#pick(whens)
    const text = this.#pick(said).replace('{when}', when)
    const id = this.#say(session, person, text.charAt(0).toUpperCase() + text.slice(1))
    this.#ask('time', asked.replace('{p}', person), [id])
    const day = new Date(this.#sessions[session]!.at - days * dayMs)
    const date = day.toLocaleDateString('en-US', { day: 'numeric', month: 'long', year: 'numeric', timeZone: 'UTC' })
    if (this.#random() < 0.5) this.#ask('time', `What did ${person} tell that had happened on ${date}?`, [id])
  }
  #update(person: string, { said, asked, values }: (typeof changes)[number]): void {
    const sessions = this.#some([...this.#sessions.keys()], 3).toSorted((x, y) => x - y)
    const told = this.#some(values, 3).map((one, i) =>
      this.#say(sessions[i]!, person, this.#pick(said).replace('{x}', one)),
    )
    this.#ask('update', this.#pick(asked).replace('{p}', person), [told.at(-1)!])
  }
  /** Who somebody is, and what they do, are told apart: a question needs both. */
  #multi(person: string, relation: string): void {
    const other = this.#pick(names.filter((name) => !this.#people.includes(name)))
    const town = this.#pick(towns)
    const [first, second] = this.#some([...this.#sessions.keys()], 2) as [number, number]
    const who = this.#say(
      first,
      person,
      this.#pick([
        `My ${relation} ${other} called me this morning.`,
        `You remember ${other}, my ${relation}?`,
        `${other} is my ${relation}, we grew up on the same street.`,
      ]),
    )
    const what = this.#say(
      second,
      person,
      this.#pick([
        `${other} opened a small restaurant in ${town}.`,
        `${other} teaches chemistry in ${town}.`,
        `${other} restores boats in ${town}, imagine that.`,
      ]),
    )
    this.#ask(
      'multi-hop',
      this.#pick([
        `In which city does the ${relation} of ${person} work?`,
        `What does ${person}'s ${relation} do for a living?`,
      ]),
      [who, what],
    )
  }
  #chat(): void {
    for (const session of this.#sessions.keys())
      for (let i = 0; i < 16; i++) {
        const [who, other] = this.#random() < 0.5 ? this.#people : [this.#people[1], this.#people[0]]
        this.#say(session, who, this.#pick(chatter).replace('{o}', other))
      }
  }
}
