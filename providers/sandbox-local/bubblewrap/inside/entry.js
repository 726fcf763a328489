// The first program of a sandbox. It is ours, and plain JavaScript, so that it is there in a moment: it opens the port at
// which the worker finds the runner, hands the listening socket out to the runner, and then becomes the worker.
import { closeSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'

const closeOnExec = 0o2000000

// Whoever started the runner may have left it files that are open in every child: none goes on into the sandbox.
for (const fd of readdirSync('/proc/self/fd').map(Number)) if (fd > 2 && isInherited(fd)) closeSync(fd)
// When memory runs out, the kernel takes a sandbox first.
writeFileSync('/proc/self/oom_score_adj', '1000')

const server = createServer()
server.listen(Number(process.argv[2]), '127.0.0.1', () => process.send('listening', server))
process.once('message', ({ command, env }) => {
  server.close(() => {
    process.off('disconnect', giveUp)
    process.disconnect()
    try {
      process.execve(command[0], command, env)
    } catch (error) {
      console.error(`${command[0]} cannot be started: ${error.code}`)
      process.exit(127)
    }
  })
})
// The runner is gone.
process.once('disconnect', giveUp)

function giveUp() {
  process.exit(1)
}

/** What Node has opened itself closes by itself; of the rest only our channel is ours. */
function isInherited(fd) {
  try {
    const flags = /^flags:\s*(\d+)/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'))
    return (Number.parseInt(flags[1], 8) & closeOnExec) === 0
  } catch {
    // It was that of the folder itself.
    return false
  }
}
