import { Type } from '@sinclair/typebox'

// Bodies of E2B's REST API as its OpenAPI document has them (e2b-dev/E2B, spec/openapi.yml, August 2026). The server ignores what
// it does not know; here it is refused, so that a slip in a name is found.

const strict = { additionalProperties: false }

export const NewSandbox = Type.Object(
  {
    templateID: Type.String(),
    timeout: Type.Optional(Type.Integer({ minimum: 0 })),
    autoPause: Type.Optional(Type.Boolean()),
    autoPauseMemory: Type.Optional(Type.Boolean()),
    secure: Type.Optional(Type.Boolean()),
    allow_internet_access: Type.Optional(Type.Boolean()),
    network: Type.Optional(
      Type.Object(
        {
          allowPublicTraffic: Type.Optional(Type.Boolean()),
          allowOut: Type.Optional(Type.Array(Type.String())),
          denyOut: Type.Optional(Type.Array(Type.String())),
          maskRequestHost: Type.Optional(Type.String()),
        },
        strict,
      ),
    ),
    metadata: Type.Optional(Type.Record(Type.String(), Type.String())),
    envVars: Type.Optional(Type.Record(Type.String(), Type.String())),
  },
  strict,
)

export const ConnectSandbox = Type.Object({ timeout: Type.Integer({ minimum: 0 }) }, strict)
export const SandboxTimeoutRequest = Type.Object({ timeout: Type.Integer({ minimum: 0 }) }, strict)
export const SandboxPauseRequest = Type.Object({ memory: Type.Optional(Type.Boolean()) }, strict)

// envd, the agent inside of a sandbox (spec/envd/process/process.proto, as JSON).

export const StartRequest = Type.Object(
  {
    process: Type.Object(
      {
        cmd: Type.String(),
        args: Type.Optional(Type.Array(Type.String())),
        envs: Type.Optional(Type.Record(Type.String(), Type.String())),
        cwd: Type.Optional(Type.String()),
      },
      strict,
    ),
    tag: Type.Optional(Type.String()),
    stdin: Type.Optional(Type.Boolean()),
  },
  strict,
)

export const SendSignalRequest = Type.Object(
  {
    process: Type.Union([Type.Object({ pid: Type.Integer() }, strict), Type.Object({ tag: Type.String() }, strict)]),
    signal: Type.Union([Type.Literal('SIGNAL_SIGTERM'), Type.Literal('SIGNAL_SIGKILL')]),
  },
  strict,
)
