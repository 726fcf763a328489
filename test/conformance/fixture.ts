import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import {
  CallToolRequestSchema,
  type CallToolResult,
  CompleteRequestSchema,
  GetPromptRequestSchema,
  ListPromptsRequestSchema,
  ListResourcesRequestSchema,
  ListResourceTemplatesRequestSchema,
  ListToolsRequestSchema,
  McpError,
  type PromptMessage,
  ReadResourceRequestSchema,
  type Tool,
} from '@modelcontextprotocol/sdk/types.js'

type Content = CallToolResult['content'][number]
type Tell = (progress: number) => Promise<void>

/** A pixel, and a sound of no length. */
const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=='
const wav = Buffer.from('RIFF$\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0@\x1f\0\0\x80>\0\0\x02\0\x10\0data\0\0\0\0', 'latin1')

const text = (said: string): Content => ({ type: 'text', text: said })
const image: Content = { type: 'image', data: png, mimeType: 'image/png' }
const audio: Content = { type: 'audio', data: wav.toString('base64'), mimeType: 'audio/wav' }
const resource = (uri: string, mimeType: string, said: string): Content => ({
  type: 'resource',
  resource: { uri, mimeType, text: said },
})

/** What scenarios of the suite call, by name. */
const answers: Readonly<Record<string, (tell: Tell) => Content[] | Promise<Content[]>>> = {
  test_simple_text: () => [text('This is a simple text response for testing.')],
  test_image_content: () => [image],
  test_audio_content: () => [audio],
  test_embedded_resource: () => [
    resource('test://embedded-resource', 'text/plain', 'This is an embedded resource content.'),
  ],
  test_multiple_content_types: () => [
    text('Multiple content types test:'),
    image,
    resource('test://mixed-content-resource', 'application/json', '{"test":"data","value":123}'),
  ],
  test_tool_with_progress: async (tell) => {
    for (const done of [0, 50, 100]) {
      await tell(done)
      await sleep(20)
    }
    return [text('Done.')]
  },
  // Of the revision of 2026-07-28: it wants what no client of ours has, it could ask its user, it could write a log.
  test_missing_capability: () => {
    throw new McpError(-32_021, 'Missing required client capability', { requiredCapabilities: { sampling: {} } })
  },
  test_streaming_elicitation: () => [text('Nobody was asked.')],
  test_logging_tool: () => [text('Nothing was logged.')],
  json_schema_2020_12_tool: () => [text('ok')],
}

const schema2020: Tool['inputSchema'] = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  type: 'object',
  $defs: {
    address: {
      $anchor: 'addressDef',
      type: 'object',
      properties: { street: { type: 'string' }, city: { type: 'string' } },
    },
  },
  properties: {
    name: { type: 'string' },
    address: { $ref: '#/$defs/address' },
    contactMethod: { type: 'string', enum: ['phone', 'email'] },
    phone: { type: 'string' },
    email: { type: 'string' },
  },
  allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
  if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
  // oxlint-disable-next-line unicorn/no-thenable -- a word of JSON Schema
  then: { required: ['phone'] },
  else: { required: ['email'] },
  additionalProperties: false,
}

/** The tools of the fixture, as it lists them. The scenarios take the first one that they find for questions of form. */
export const fixtureTools: readonly Tool[] = [...Object.keys(answers), 'test_error_handling'].map((name) => ({
  name,
  description: `Is called by the suite as ${name}.`,
  inputSchema: name === 'json_schema_2020_12_tool' ? schema2020 : { type: 'object' },
}))

export async function callFixture(name: string, tell: Tell = async () => {}): Promise<CallToolResult> {
  if (name !== 'test_error_handling') return { content: await answers[name]!(tell) }
  return { content: [text('This tool intentionally returns an error for testing')], isError: true }
}

/** Contents of resources that scenarios read. */
const readable: Readonly<Record<string, object>> = {
  'test://static-text': { mimeType: 'text/plain', text: 'This is the content of the static text resource.' },
  'test://static-binary': { mimeType: 'image/png', blob: png },
  'test://template/123/data': { mimeType: 'application/json', text: '{"id":"123","templateTest":true}' },
}

type Arguments = Readonly<Record<string, string>>
const say = (content: Content): PromptMessage => ({ role: 'user', content })
/** Prompts that scenarios get. */
const prompts: Readonly<Record<string, (args: Arguments) => PromptMessage[]>> = {
  test_simple_prompt: () => [say(text('This is a simple prompt for testing.'))],
  test_prompt_with_arguments: ({ arg1, arg2 }) => [say(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  test_prompt_with_embedded_resource: ({ resourceUri = '' }) => [
    say(resource(resourceUri, 'text/plain', 'Embedded resource content for testing.')),
    say(text('Please process the embedded resource above.')),
  ],
  test_prompt_with_image: () => [say(image), say(text('Please analyze the image above.'))],
}

/** What the fixture has beside tools. */
function addRest(server: Server): void {
  server.setRequestHandler(ListResourcesRequestSchema, async () => ({
    resources: ['test://static-text', 'test://static-binary'].map((uri) => ({ uri, name: uri, description: uri })),
  }))
  server.setRequestHandler(ListResourceTemplatesRequestSchema, async () => ({
    resourceTemplates: [{ uriTemplate: 'test://template/{id}/data', name: 'template' }],
  }))
  server.setRequestHandler(ReadResourceRequestSchema, async ({ params: { uri } }) => {
    const content = readable[uri]
    if (!content) throw new McpError(-32_602, 'Resource not found', { uri })
    return { contents: [{ uri, ...content }] } as never
  })
  server.setRequestHandler(ListPromptsRequestSchema, async () => ({
    prompts: Object.keys(prompts).map((name) => ({ name, description: name })),
  }))
  server.setRequestHandler(GetPromptRequestSchema, async ({ params }) => ({
    messages: prompts[params.name]!(params.arguments ?? {}),
  }))
  server.setRequestHandler(CompleteRequestSchema, async () => ({ completion: { values: ['paris', 'park'] } }))
}

/** The MCP server behind the endpoint that is tested; resolves to its URL. */
export async function startFixture(t: Pick<TestContext, 'after'>): Promise<string> {
  const sessions = new Map<string, StreamableHTTPServerTransport>()
  const open = async (): Promise<StreamableHTTPServerTransport> => {
    const capabilities = { tools: {}, resources: {}, prompts: {}, completions: {} }
    const server = new Server({ name: 'fixture', version: '1' }, { capabilities })
    addRest(server)
    server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools: [...fixtureTools] }))
    server.setRequestHandler(CallToolRequestSchema, async ({ params }, { sendNotification }) => {
      const progressToken = params._meta?.progressToken
      return callFixture(params.name, async (progress) => {
        if (progressToken === undefined) return
        await sendNotification({
          method: 'notifications/progress',
          params: { progressToken, progress, total: 100 },
        })
      })
    })
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => void sessions.set(id, transport),
    })
    await server.connect(transport as never)
    return transport
  }
  const http = createServer(async (request, response) => {
    const known = sessions.get(String(request.headers['mcp-session-id']))
    await (known ?? (await open())).handleRequest(request, response)
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  return `http://127.0.0.1:${(http.address() as AddressInfo).port}/mcp`
}
