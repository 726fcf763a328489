// What the suite starts for each scenario: it hands the scenario to the process of the test, which has our client loaded, and
// ends as our client did. Starting our client itself for each one would be nearly all that these tests take.
import { request } from 'node:http'

const [test, url] = process.argv.slice(2)
const { MCP_CONFORMANCE_SCENARIO: scenario, MCP_CONFORMANCE_CONTEXT: context } = process.env
const asked = request(test, { method: 'POST' }, (answer) => {
  if (answer.statusCode !== 200) process.exitCode = 1
  answer.pipe(process.stderr)
})
asked.end(JSON.stringify({ scenario, context, url }))
