/** What a profile, or the operator, does to use a plugin of the kind. */
const uses = {
  runtime: (name) => `A profile uses it with \`runtime: ${name}\`.`,
  'sandbox-provider': (name) => `A profile uses it with \`workerMode: sandbox\` and \`sandbox: {provider: ${name}}\`.`,
  'model-provider': (name) => `A profile uses it with \`model: ${name}/<model>\`.`,
  tool: () => 'A profile uses its tools by their names, in `tools`.',
  capability: (name) => `It adds \`/api/${name}\` to the conductor, and a table of its own to the database.`,
} satisfies Readonly<Record<string, (name: string) => string>>

/** What its tests are. */
const suite = {
  of: 'the contract that the bundled ones pass too',
  change: 'give its script the prompts or calls that fit what yours does',
}
const ownTests = {
  of: 'on a PostgreSQL of its own, in a whole conductor',
  change: 'keep that tenants do not meet, that bad input is 400 and that an unknown id is 404',
}

/** What an author can make. */
export type Kind = keyof typeof uses

export function readmeOf(kind: Kind, name: string): string {
  const tests = kind === 'capability' ? ownTests : suite
  return `# ${name}

A ${kind.replace('-', ' ')} for Agent Orc. ${uses[kind](name)}

\`\`\`
npm test         # ${tests.of}
npm run dev      # Agent Orc on this machine, with this plugin in it
\`\`\`

Begin in \`index.ts\`: it works as it is, and does something simple. \`test/index.test.ts\` says what must stay true; ${tests.change}.
The guide is docs/plugins.md of Agent Orc.

\`node_modules/agent-orc\` is a link to the installation that wrote this package. Elsewhere, \`npm install <path or version of agent-orc>\`.
To use it in a role file, add under \`plugins\`:

\`\`\`yaml
${name}: { use: /path/to/${name} }
\`\`\`

To publish it, \`npm install -D typescript\` and \`npm publish\`: Node does not strip types under node_modules, so \`prepack\` builds \`dist/\`.
`
}
