/** Nesting depth of JSON text, counted without parsing it. */
export function jsonDepth(body: Buffer): number {
  let depth = 0
  let deepest = 0
  for (let i = 0; i < body.length; i++) {
    const c = body[i]
    if (c === 0x22) i = endOfString(body, i + 1)
    else if (c === 0x7b || c === 0x5b) deepest = Math.max(deepest, ++depth)
    else if (c === 0x7d || c === 0x5d) depth--
  }
  return deepest
}

/** Calling into Node costs more than looking at so many bytes. */
const lookedAt = 64

/** Where the string that begins at `from` has its last quote; an attachment is megabytes of one string. */
function endOfString(body: Buffer, from: number): number {
  let at = from
  for (const until = from + lookedAt; at < until; at++) {
    const c = body[at]
    if (c === 0x22 || c === undefined) return at
    if (c === 0x5c) at++
  }
  for (let quote = body.indexOf(0x22, at); quote !== -1; quote = body.indexOf(0x22, quote + 1)) {
    let before = quote
    while (before > at && body[before - 1] === 0x5c) before--
    if ((quote - before) % 2 === 0) return quote
  }
  return body.length
}
