const maxNameBytes = 255

/** A relative path in normal form: what cannot leave the folder that it is unpacked into, on any file system. */
export function isEntryName(name: string): boolean {
  if (name === '' || Buffer.byteLength(name) > maxNameBytes) return false
  // U+FFFD stands for bytes that were no text: two such names could be one.
  // oxlint-disable-next-line no-control-regex
  if (/[\u0000-\u001f\u007f\\\ufffd]/.test(name)) return false
  return name.split('/').every((part) => part !== '' && part !== '.' && part !== '..')
}
