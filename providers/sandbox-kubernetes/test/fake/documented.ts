import { Type } from '@sinclair/typebox'

// Objects as kubernetes-sigs/agent-sandbox (api/v1beta1, August 2026) and Kubernetes document them. A server drops what it does not
// know; here it is refused, so that a slip in a name is found.

const strict = { additionalProperties: false }
const Texts = Type.Record(Type.String(), Type.String())
const Label = Type.String({ maxLength: 63, pattern: '^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$' })
const LabelName = '^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$'
/** Texts by names that look like this, as JSON Schema has it. */
const TextsBy = (name: string, value: object) =>
  Type.Unsafe<Record<string, string>>({
    type: 'object',
    patternProperties: { [name]: value },
    additionalProperties: false,
  })
const Labels = TextsBy(LabelName, Label)

const Quantity = Type.String({ pattern: '^[0-9.]+([eE][0-9]+|[numkMGTPE]|[KMGTPE]i)?$' })
const Amounts = Type.Object(
  {
    memory: Type.Optional(Quantity),
    cpu: Type.Optional(Quantity),
    'ephemeral-storage': Type.Optional(Quantity),
    storage: Type.Optional(Quantity),
  },
  strict,
)

const Container = Type.Object(
  {
    name: Type.String(),
    image: Type.String(),
    command: Type.Optional(Type.Array(Type.String())),
    imagePullPolicy: Type.Optional(Type.String()),
    env: Type.Optional(Type.Array(Type.Unknown())),
    envFrom: Type.Array(Type.Object({ secretRef: Type.Object({ name: Type.String() }, strict) }, strict)),
    workingDir: Type.Optional(Type.String()),
    resources: Type.Object({ requests: Type.Optional(Amounts), limits: Type.Optional(Amounts) }, strict),
    securityContext: Type.Object(
      {
        allowPrivilegeEscalation: Type.Boolean(),
        privileged: Type.Boolean(),
        readOnlyRootFilesystem: Type.Boolean(),
        capabilities: Type.Object({ drop: Type.Array(Type.String()) }, strict),
      },
      strict,
    ),
    volumeMounts: Type.Array(
      Type.Object(
        { name: Type.String(), mountPath: Type.String(), subPath: Type.Optional(Type.String()) },
        { additionalProperties: false },
      ),
    ),
  },
  strict,
)

const PodSpec = Type.Object(
  {
    restartPolicy: Type.Union(['Always', 'OnFailure', 'Never'].map((policy) => Type.Literal(policy))),
    terminationGracePeriodSeconds: Type.Optional(Type.Integer()),
    automountServiceAccountToken: Type.Optional(Type.Boolean()),
    enableServiceLinks: Type.Optional(Type.Boolean()),
    runtimeClassName: Type.Optional(Type.String()),
    nodeSelector: Type.Optional(Texts),
    tolerations: Type.Optional(Type.Array(Type.Unknown())),
    imagePullSecrets: Type.Optional(Type.Array(Type.Unknown())),
    securityContext: Type.Optional(
      Type.Object(
        {
          fsGroup: Type.Optional(Type.Integer()),
          runAsUser: Type.Optional(Type.Integer()),
          runAsGroup: Type.Optional(Type.Integer()),
          runAsNonRoot: Type.Optional(Type.Boolean()),
          seccompProfile: Type.Optional(Type.Object({ type: Type.String() }, strict)),
        },
        strict,
      ),
    ),
    containers: Type.Array(Container, { minItems: 1 }),
    volumes: Type.Optional(Type.Array(Type.Unknown())),
  },
  strict,
)

const OwnerReference = Type.Object(
  {
    apiVersion: Type.String(),
    kind: Type.String(),
    name: Type.String(),
    uid: Type.String(),
    controller: Type.Optional(Type.Boolean()),
    blockOwnerDeletion: Type.Optional(Type.Boolean()),
  },
  strict,
)

/** As metav1.Time reads and writes it. */
const Time = Type.String({ pattern: '^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z$' })

export const OperatingMode = Type.Union([Type.Literal('Running'), Type.Literal('Suspended')])

export const Sandbox = Type.Object(
  {
    apiVersion: Type.Literal('agents.x-k8s.io/v1beta1'),
    kind: Type.Literal('Sandbox'),
    metadata: Type.Object(
      {
        name: Type.String({ pattern: '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$' }),
        labels: Type.Optional(Labels),
        annotations: Type.Optional(Texts),
      },
      strict,
    ),
    spec: Type.Object(
      {
        operatingMode: Type.Optional(OperatingMode),
        podTemplate: Type.Object(
          {
            metadata: Type.Optional(
              Type.Object({ labels: Type.Optional(Labels), annotations: Type.Optional(Texts) }, strict),
            ),
            spec: PodSpec,
          },
          strict,
        ),
        volumeClaimTemplates: Type.Optional(
          Type.Array(
            Type.Object(
              {
                metadata: Type.Object({ name: Type.String(), labels: Type.Optional(Labels) }, strict),
                spec: Type.Object(
                  {
                    accessModes: Type.Array(Type.String()),
                    storageClassName: Type.Optional(Type.String()),
                    resources: Type.Object({ requests: Amounts }, strict),
                  },
                  strict,
                ),
              },
              strict,
            ),
          ),
        ),
        service: Type.Optional(Type.Boolean()),
        shutdownTime: Type.Optional(Time),
        shutdownPolicy: Type.Optional(Type.Union([Type.Literal('Delete'), Type.Literal('Retain')])),
      },
      strict,
    ),
  },
  strict,
)

export const SandboxPatch = Type.Object(
  {
    spec: Type.Object(
      { operatingMode: Type.Optional(OperatingMode), shutdownTime: Type.Optional(Time) },
      { ...strict, minProperties: 1 },
    ),
  },
  strict,
)

export const Secret = Type.Object(
  {
    apiVersion: Type.Literal('v1'),
    kind: Type.Literal('Secret'),
    metadata: Type.Object(
      {
        name: Type.String(),
        labels: Type.Optional(Labels),
        ownerReferences: Type.Optional(Type.Array(OwnerReference)),
      },
      strict,
    ),
    type: Type.Optional(Type.String()),
    data: TextsBy('^[-._a-zA-Z0-9]+$', Type.String()),
  },
  strict,
)
