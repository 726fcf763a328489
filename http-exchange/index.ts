// A small library of its own: how one role asks another over HTTP, and a provider its service, without web streams.
export { exchange, type ExchangeOptions, type Reply } from './exchange.ts'
export { askJson, type JsonAnswer, type JsonRequest, NoAnswer } from './json.ts'
export { readBody, readJson } from './read.ts'
export { askPatiently, type Patience } from './retry.ts'
