/** A name of a file system takes 255 bytes, and one byte of a key may take three. */
export const mostBytes = 80
const slash = 0x2f

/**
 * What a key is on disk: one name for each segment, and several for a long one. The first character tells what it is: `+` a folder
 * whose segment ended, `~` one whose segment goes on, `=` the object. The rest is lower case, digits, `_`, `-` and `.`; any other
 * byte is `%` with two hex digits. So a name means the same on file systems that ignore case, that compose letters, and that
 * know `con` or `..`.
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
  /** That piece of the key, with the '/' that ends it. */
  readonly piece: Buffer
}

/** The pieces of keys that names are, in the order of the keys. What is no name of ours is left out. */
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

/** Of the order of keys. An object comes before the folder of longer keys that begin with all of its own. */
export const before = (a: Named, b: Named): number => a.piece.compare(b.piece) || Number(b.isFile) - Number(a.isFile)

function encoded(bytes: Uint8Array): string {
  let text = ''
  for (const [i, byte] of bytes.entries()) {
    const character = String.fromCharCode(byte)
    // Some systems drop a dot at the end.
    const plain = /[a-z0-9_-]/.test(character) || (character === '.' && i < bytes.length - 1)
    text += plain ? character : `%${byte.toString(16).padStart(2, '0')}`
  }
  return text
}
