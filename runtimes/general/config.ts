import { type Static, Type } from '@sinclair/typebox'
import { Settings } from '#kernel'

const contextTokens = (more: object) =>
  Type.Integer({ minimum: 1_000, description: 'Tokens that prompt and answer of one call may have together.', ...more })

export const ModelSettings = Type.Object(
  {
    contextTokens: Type.Optional(contextTokens({})),
    images: Type.Optional(
      Type.Boolean({
        description: 'The model accepts images, so it gets those that tools return. False by default.',
      }),
    ),
    reasoning: Type.Optional(
      Type.Union(
        (['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'] as const).map((effort) => Type.Literal(effort)),
        { description: 'Reasoning effort; by default that of the vendor.' },
      ),
    ),
  },
  { additionalProperties: false },
)
export type ModelSettings = Static<typeof ModelSettings>

export const GeneralConfig = Settings({
  maxToolSchemas: Type.Integer({
    default: 40,
    minimum: 2,
    description:
      'With more tools than this, the model finds those of MCP servers with search_tools and uses them with call_tool.',
  }),
  contextTokens: contextTokens({ default: 128_000 }),
  reasoningEvents: Type.Boolean({
    default: true,
    description: 'Whether the reasoning of models is shown as `progress` events with the stage `reasoning`.',
  }),
  models: Type.Record(Type.String(), ModelSettings, {
    default: {},
    description: 'By `provider/model`; a `*` at the end matches any rest, and the longest match wins.',
  }),
})
export type GeneralConfig = Static<typeof GeneralConfig>
