import type { FastifyBaseLogger } from 'fastify'
import { appErrors, type Apps, type AppTool, sentenceOf } from '#contracts/apps'
import type { AppCall } from '#contracts/delegation'
import type { ToolResult, ToolSpec } from '#contracts/tools'
import { type AppError, isAppError } from '#kernel'
import { boundedResult } from '#kit'
import type { ToolNames } from '#kit/mcp'
import type { Connector } from './connect.ts'
import type { ActiveToolkit, Toolkits } from './toolkits.ts'

/** The most names that one message lists. */
const mostNames = 100
/** The most tools of apps in one run, by number and by bytes: they take memory in the run's runner and sidecar. */
const mostTools = 500
const mostBytes = 1024 * 1024

interface RunToolsOptions {
  readonly toolkits: Toolkits
  readonly connector: Connector
  readonly log: FastifyBaseLogger
}

/** The tools of apps for runs. The conductor calls them, because only the conductor has the accounts. */
export class RunTools implements Apps {
  readonly #options: RunToolsOptions

  constructor(options: RunToolsOptions) {
    this.#options = options
  }

  async unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]> {
    const active = new Set((await this.#options.toolkits.active(tenantId, names)).map(({ name }) => name))
    return names.filter((name) => !active.has(name))
  }
  async names(tenantId: string): Promise<readonly string[]> {
    return (await this.#options.toolkits.active(tenantId)).slice(0, mostNames).map(({ name }) => name)
  }
  async toolsFor(tenantId: string, names: readonly string[], endUserId: string | undefined) {
    const found = await this.#options.toolkits.active(tenantId, names)
    const active = new Map(found.map((toolkit) => [toolkit.name, toolkit]))
    const offered = await Promise.all(
      names.map(async (name) => {
        const toolkit = active.get(name)
        const of = toolkit
          ? await this.#offered(tenantId, toolkit, endUserId)
          : sentenceOf(appErrors.toolkitNotActive())
        return { name, of }
      }),
    )
    const unavailable: { toolkit: string; message: string }[] = []
    const tools = new Map<string, AppTool>()
    let left = mostBytes
    for (const { name: toolkit, of } of offered) {
      if (typeof of === 'string') unavailable.push({ toolkit, message: of })
      else {
        const fits = of.filter((tool) => (left -= Buffer.byteLength(JSON.stringify(tool))) > 0)
        const shown = fits.slice(0, mostTools - tools.size)
        if (shown.length < of.length) unavailable.push({ toolkit, message: tooMany })
        // When two tools get the same name, the first one is used. MCP endpoints do the same.
        for (const tool of shown) if (!tools.has(tool.name)) tools.set(tool.name, tool)
      }
    }
    return { tools: [...tools.values()], unavailable }
  }
  async call(
    tenantId: string,
    { toolkit: name, tool, input }: AppCall['app'],
    endUserId: string | undefined,
    signal: AbortSignal,
  ): Promise<ToolResult> {
    const { toolkits, log } = this.#options
    try {
      const toolkit = await toolkits.find(tenantId, name)
      try {
        if (tool === undefined) {
          await toolkits.check(tenantId, toolkit, endUserId)
          return {
            ok: true,
            content: `The account is connected. The tools of ${name} are there from the next message on.`,
          }
        }
        const { ok, content } = await toolkits.call(tenantId, toolkit, { tool, input, endUserId }, signal)
        return { ok, content: boundedResult(content) }
      } catch (error) {
        if (!isAppError(error) || !isUnconnected(error)) throw error
        return {
          ok: false,
          content: await this.#withLink(tenantId, toolkit, endUserId, whyUnconnected(error, toolkit)),
        }
      }
    } catch (error) {
      if (!isAppError(error)) log.warn({ err: error, tenantId, toolkit: name }, 'a call of an app failed')
      return { ok: false, content: isAppError(error) ? sentenceOf(error) : 'The app could not be called.' }
    }
  }

  /** The tools of one toolkit, or why there are none. */
  async #offered(
    tenantId: string,
    toolkit: ActiveToolkit,
    endUserId: string | undefined,
  ): Promise<readonly AppTool[] | string> {
    const { nameOf } = (await import('#kit/mcp')).toolNames('')
    try {
      const tools = await this.#options.toolkits.tools(tenantId, toolkit, endUserId)
      return tools.map((tool) => toolOf(nameOf, toolkit, tool))
    } catch (error) {
      if (!isAppError(error)) throw error
      return isUnconnected(error) ? [connectTool(nameOf, toolkit)] : sentenceOf(error)
    }
  }
  /** The text for the model when an account is missing: the reason and, if possible, a link where the owner connects it. */
  async #withLink(
    tenantId: string,
    toolkit: ActiveToolkit,
    endUserId: string | undefined,
    why: string,
  ): Promise<string> {
    const { connector, log } = this.#options
    try {
      const { url } = await connector.begin(tenantId, toolkit, { endUserId })
      const whose = toolkit.connection === 'user' ? 'The user connects it here' : 'An administrator connects it here'
      return `${why} ${whose}, within ten minutes: ${url}`
    } catch (error) {
      if (!isAppError(error))
        log.warn({ err: error, tenantId, toolkit: toolkit.name }, 'an account cannot be connected')
      return isAppError(error) && error.code === appErrors.connectRefused.row.code ? `${why} ${sentenceOf(error)}` : why
    }
  }
}

const tooMany = 'The apps of the profile have more tools than a run can have.'

/** Makes names of the form `<toolkit>__<tool>` in characters that models accept, as for the tools of MCP servers. */
type NameOf = ToolNames['nameOf']

/** True when the account is not connected, or when no end user was named. */
const isUnconnected = ({ code }: AppError): boolean =>
  code === appErrors.appNotConnected.row.code || code === 'invalid_request'

const whyUnconnected = (error: AppError, { name }: ActiveToolkit): string =>
  error.code === appErrors.appNotConnected.row.code
    ? `${name}: ${sentenceOf(error)}`
    : `${name}: each person has an account of their own here, and it is not known for whom this is.`

const toolOf = (
  nameOf: NameOf,
  { name: toolkit }: ActiveToolkit,
  { name: tool, description, inputSchema }: ToolSpec,
): AppTool => ({
  name: nameOf(toolkit, tool),
  description,
  inputSchema: { ...inputSchema },
  toolkit,
  tool,
})

/** The placeholder tool of an app that needs an account before its tools can be listed. */
const connectTool = (nameOf: NameOf, { name: toolkit, description }: ActiveToolkit): AppTool => ({
  name: nameOf(toolkit, 'connect'),
  description: `Says how the account of the user is connected to ${toolkit}, whose tools are there afterwards.${description ? ` ${toolkit}: ${description}` : ''}`,
  inputSchema: { type: 'object', properties: {}, additionalProperties: false },
  toolkit,
})
