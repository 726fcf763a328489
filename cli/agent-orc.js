#!/usr/bin/env node
// Plain JavaScript that old versions of Node can read: it finds a new enough one, then hands over.
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import module, { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const [major, minor] = process.versions.node.split('.').map(Number)

// TypeScript runs unbuilt from 24.12 on.
if (major > 24 || (major === 24 && minor >= 12)) {
  // Halves the time until a command answers; where the folder cannot be written it changes nothing.
  module.enableCompileCache?.(fileURLToPath(new URL('../node_modules/.cache/agent-orc', import.meta.url)))
  const { main } = await import('./main.ts')
  process.exitCode = await main(process.argv)
} else {
  const node = bundledNode()
  if (node === undefined) {
    console.error(
      `agent-orc needs Node 24.12 or newer and this is ${process.versions.node}: install it from https://nodejs.org, or run npm ci with install scripts allowed.`,
    )
    process.exit(1)
  }
  reexecute(node)
}

/** The `node` package brings a current Node along, where its install script ran. */
function bundledNode() {
  try {
    const folder = dirname(createRequire(import.meta.url).resolve('node/package.json'))
    return [join(folder, 'bin', 'node'), join(folder, 'bin', 'node.exe')].find((file) => existsSync(file))
  } catch {
    return undefined
  }
}

function reexecute(node) {
  // The channel tells the child when this process is gone, however it went.
  const child = spawn(node, [...process.execArgv, fileURLToPath(import.meta.url), ...process.argv.slice(2)], {
    stdio: ['inherit', 'inherit', 'inherit', 'ipc'],
  })
  child.once('error', (error) => {
    console.error(`agent-orc: ${node} does not start: ${error.message}`)
    process.exit(1)
  })
  child.once('exit', (code, signal) => process.exit(code ?? (signal === 'SIGINT' ? 130 : 1)))
  process.on('SIGTERM', () => child.kill('SIGTERM'))
  process.on('SIGHUP', () => child.kill('SIGHUP'))
  // A terminal sends Ctrl-C to both already; a second copy would read as impatience.
  process.on('SIGINT', () => process.stdin.isTTY || child.kill('SIGINT'))
}
