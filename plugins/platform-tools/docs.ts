import { readdir, readFile, stat } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'

/** The folder that holds README.md and docs/: two up from this unit. */
export const bundledDocs = join(import.meta.dirname, '..', '..')

/** A heading with the text up to the next one. */
export interface Section {
  readonly file: string
  readonly title: string
  readonly text: string
}

const maxFiles = 500
const maxFileBytes = 1024 * 1024

/** README.md and every Markdown file under docs/, split by headings. Files that cannot be read are left out. */
export async function readSections(root: string): Promise<Section[]> {
  const under = await readdir(join(root, 'docs'), { recursive: true, withFileTypes: true }).catch(() => [])
  const files = under
    .filter((entry) => entry.isFile() && entry.name.endsWith('.md'))
    .map((entry) => join(entry.parentPath, entry.name))
    .sort()
  const sections: Section[] = []
  for (const path of [join(root, 'README.md'), ...files].slice(0, maxFiles)) {
    const size = (await stat(path).catch(() => undefined))?.size ?? Infinity
    if (size > maxFileBytes) continue
    const text = await readFile(path, 'utf8').catch(() => '')
    sections.push(...split(relative(root, path).split(sep).join('/'), text))
  }
  return sections
}

function split(file: string, markdown: string): Section[] {
  const sections: Section[] = []
  let title = file
  let lines: string[] = []
  let fenced = false
  const close = (): void => {
    const text = lines.join('\n').trim()
    if (text !== '') sections.push({ file, title, text })
  }
  for (const line of markdown.split('\n')) {
    if (/^\s*(```|~~~)/.test(line)) fenced = !fenced
    const heading = fenced ? null : /^#{1,6}\s+(.+?)\s*#*$/.exec(line)
    if (!heading) {
      lines.push(line)
      continue
    }
    close()
    title = heading[1]!
    lines = []
  }
  close()
  return sections
}
