/** A Markdown table that lines up in a terminal, too; the first row is its head. */
export function draw(rows: readonly (readonly string[])[]): string {
  const [head = [], ...body] = rows
  const widths = head.map((_, column) => Math.max(...rows.map((cells) => cells[column]?.length ?? 0)))
  const line = (cells: readonly string[]): string =>
    `| ${cells.map((text, i) => text.padEnd(widths[i] ?? 0)).join(' | ')} |`
  return [line(head), `| ${widths.map((width) => '-'.repeat(width)).join(' | ')} |`, ...body.map(line)].join('\n')
}

/** `1,234.5`; `-` for what was not measured. */
export const shown = (value: number | undefined, digits: number): string =>
  value === undefined || Number.isNaN(value)
    ? '-'
    : value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })
