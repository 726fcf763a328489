import { type Static, Type } from '@sinclair/typebox'
import { PageQuery } from '#contracts/paging'

const Time = Type.String({ format: 'date-time' })
const MaybeTime = Type.Union([Time, Type.Null()])

const deliveryStates = ['pending', 'delivered', 'dead'] as const
export type DeliveryState = (typeof deliveryStates)[number]

export const Delivery = Type.Object({
  id: Type.String({ description: 'The `webhook-id` of the message: the same in every attempt.' }),
  type: Type.String({ description: '`run.finished`, or another event such as `app.connection.expired`.' }),
  runId: Type.Optional(Type.String({ description: 'The run that ended.' })),
  url: Type.String(),
  state: Type.Union(
    deliveryStates.map((state) => Type.Literal(state)),
    { description: '`dead`: given up after the last attempt, or because the receiver answered 410.' },
  ),
  attempts: Type.Integer(),
  nextAttemptAt: MaybeTime,
  lastStatus: Type.Union([Type.Integer(), Type.Null()], { description: 'HTTP status of the last attempt.' }),
  lastError: Type.Union([Type.String(), Type.Null()]),
  createdAt: Time,
  endedAt: MaybeTime,
})
export type Delivery = Static<typeof Delivery>

export const DeliveryQuery = Type.Composite([
  PageQuery,
  Type.Object({
    state: Type.Optional(Type.Union(deliveryStates.map((state) => Type.Literal(state)))),
    runId: Type.Optional(Type.String({ maxLength: 128 })),
  }),
])
export const DeliveryParams = Type.Object({ id: Type.String({ description: 'Id of the message.' }) })

export const Secret = Type.Object({
  secret: Type.String({
    description: '`whsec_…`, the secret that verifies signatures; or `secret://<name>`, whose value it is.',
  }),
  version: Type.Integer(),
  previousUntil: Type.Union([Time, Type.Null()], {
    description: 'Until then messages also have the signature of the previous secret.',
  }),
})
export type Secret = Static<typeof Secret>

export const OwnSecret = Type.Object(
  {
    secret: Type.String({
      maxLength: 256,
      description: '`secret://<name>`, whose value is `whsec_` and base64 of 24 to 64 bytes.',
    }),
  },
  { additionalProperties: false },
)
