// A small library of its own: how one role asks another over HTTP, without web streams.
export { exchange, type ExchangeOptions, type Reply } from './exchange.ts'
export { readBody, readJson } from './read.ts'
