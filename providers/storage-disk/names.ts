/** Bytes of a key in one name. A file system allows names of 255 bytes, and one byte of a key may take three. */
export const mostBytes = 80
const slash = 0x2f

/**
 * Encodes a key as names on disk: one name per segment, several for a long segment. The first character is the kind: `+` a folder in which a
 * segment ends, `~` a folder whose segment continues, `=` the object. The rest is lower case, digits, `_`, `-` and `.`; every other byte is `%`
 * with two hex digits. Names therefore keep their meaning on file systems that ignore case, that compose letters, and that reserve `con` or `..`.
 */
export function namesOf(key: string): [...folders: string[], file: string] {
  const bytes = Buffer.from(key)
  const folders: string[] = []
  for (let from = 0; ;) {
    const at = bytes.indexOf(slash, from)
    const end = at < 0 ? bytes.length : at + 1
    if (end - from > mostBytes) {
      folders.push(`~${encoded(bytes.subarray(from, from + mostBytes))}`)
      from += mostBytes
    } else if (at < 0) return [...folders, `=${encoded(bytes.subarray(from))}`]
    else {
      folders.push(`+${encoded(bytes.subarray(from, at))}`)
      from = end
    }
  }
}

export interface Named {
  readonly name: string
  readonly isFile: boolean
  /** That part of the key, including the '/' that ends it. */
  readonly piece: Buffer
}

/** The parts of keys that names stand for, in the order of the keys. Names that are not ours are left out. */
export function inOrder(names: readonly string[]): Named[] {
  const known = names.flatMap((name): Named[] => {
    if (!/^[+~=](?:[a-z0-9_.-]|%[0-9a-f]{2})*$/.test(name)) return []
    const piece = Buffer.from(
      name.slice(1).replaceAll(/%(..)/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16))),
      'latin1',
    )
    return [
      { name, isFile: name[0] === '=', piece: name[0] === '+' ? Buffer.concat([piece, Buffer.of(slash)]) : piece },
    ]
  })
  return known.sort(before)
}

/** Compares in the order of keys. An object comes before the folder of longer keys that begin with the object's whole key. */
export const before = (a: Named, b: Named): number => a.piece.compare(b.piece) || Number(b.isFile) - Number(a.isFile)

function encoded(bytes: Uint8Array): string {
  let text = ''
  for (const [i, byte] of bytes.entries()) {
    const character = String.fromCharCode(byte)
    // Escape a dot at the end, because some systems drop it.
    const plain = /[a-z0-9_-]/.test(character) || (character === '.' && i < bytes.length - 1)
    text += plain ? character : `%${byte.toString(16).padStart(2, '0')}`
  }
  return text
}
