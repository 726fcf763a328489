import { objectErrors } from '#contracts/object-store'

/** The largest list: a thousand keys of a kilobyte, each byte of which takes three, with their properties. */
const mostListBytes = 8 * 1024 * 1024
async function wholeText(body: AsyncIterable<Uint8Array>): Promise<string> {
  const chunks: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of body) {
    bytes += chunk.length
    if (bytes > mostListBytes) throw new Error(`a list of more than ${mostListBytes} bytes`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString()
}

/** Reads a server's answer to ListObjectsV2. The server may belong to a tenant, and may answer anything. */
export async function listIn(body: AsyncIterable<Uint8Array>): Promise<Listed> {
  try {
    return readList(await wholeText(body))
  } catch (cause) {
    throw objectErrors.storageUnavailable({
      message: 'The S3 server answers a list request with something that is not a list.',
      cause,
    })
  }
}

/** A page of ListObjectsV2. */
export interface Listed {
  readonly objects: readonly { readonly key: string; readonly bytes: number }[]
  readonly prefixes: readonly string[]
  readonly truncated: boolean
}

const entities: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" }

const unescaped = (text: string): string =>
  text.replaceAll(/&(?:#x([0-9a-f]+)|#(\d+)|(\w+));/gi, (all, hex?: string, decimal?: string, name?: string) => {
    if (hex !== undefined) return String.fromCodePoint(parseInt(hex, 16))
    if (decimal !== undefined) return String.fromCodePoint(Number(decimal))
    return entities[name!] ?? all
  })

/**
 * Reads a list in the XML of S3. The XML is flat and generated, and the parts that are read have no comments, attributes or CDATA, so no XML parser
 * is needed. Keys are URL-encoded if the server does as requested.
 */
export function readList(xml: string): Listed {
  const coded = /<EncodingType>\s*url\s*<\/EncodingType>/.test(xml)
  const textOf = (within: string, name: string): string => {
    const text = unescaped(new RegExp(`<${name}>([^<]*)</${name}>`).exec(within)?.[1] ?? '')
    return text
  }
  const keyOf = (text: string): string => (coded ? decodeURIComponent(text.replaceAll('+', ' ')) : text)
  const all = (name: string): string[] =>
    xml
      .split(`<${name}>`)
      .slice(1)
      .map((one) => one.split(`</${name}>`, 1)[0]!)
  return {
    objects: all('Contents').map((one) => ({ key: keyOf(textOf(one, 'Key')), bytes: Number(textOf(one, 'Size')) })),
    prefixes: all('CommonPrefixes').map((one) => keyOf(textOf(one, 'Prefix'))),
    truncated: textOf(xml, 'IsTruncated') === 'true',
  }
}
