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
 * Reads what a server of S3 lists. Its XML is flat and made by a program, without comments, attributes or CDATA in what is read here,
 * so it needs no parser of documents. Keys are in the encoding of URLs where the server does as it was asked.
 */
export function readList(xml: string): Listed {
  const coded = /<EncodingType>\s*url\s*<\/EncodingType>/.test(xml)
  const textOf = (within: string, name: string): string => {
    const text = unescaped(new RegExp(`<${name}>([^<]*)</${name}>`).exec(within)?.[1] ?? '')
    return text
  }
  const keyOf = (text: string): string => (coded ? decodeURIComponent(text.replaceAll('+', ' ')) : text)
  const all = (name: string): string[] =>
    [...xml.matchAll(new RegExp(`<${name}>(.*?)</${name}>`, 'gs'))].map(([, inner]) => inner!)
  return {
    objects: all('Contents').map((one) => ({ key: keyOf(textOf(one, 'Key')), bytes: Number(textOf(one, 'Size')) })),
    prefixes: all('CommonPrefixes').map((one) => keyOf(textOf(one, 'Prefix'))),
    truncated: textOf(xml, 'IsTruncated') === 'true',
  }
}
