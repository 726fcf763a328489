/** Text without characters that PostgreSQL refuses. */
export const storable = (text: string): string => text.toWellFormed().replaceAll('\0', '\uFFFD')

/** JSON without the escapes that PostgreSQL refuses to read: NUL, and halves of surrogate pairs, which `JSON.stringify` writes as escapes. */
export const storableJson = (value: unknown): string =>
  (JSON.stringify(value) ?? 'null').replaceAll(/(?<!\\)((?:\\\\)*)\\u(?:0000|d[89a-f][0-9a-f]{2})/g, '$1\\ufffd')
