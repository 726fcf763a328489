import { Type } from '@sinclair/typebox'
import {
  isKeyPrefix,
  lastCharacter,
  maxKeyBytes,
  maxObjectBytes,
  mostObjectsAtOnce,
  mostSegments,
  type ObjectInfo,
} from '#contracts/object-store'

export const StorageInfo = Type.Object({
  configured: Type.Boolean({ description: 'False: this server has no object store, and the other routes answer 503.' }),
  backend: Type.Optional(Type.String({ description: 'What keeps the objects, e.g. `disk` or `s3`.' })),
  maxObjectBytes: Type.Integer({ description: `The most bytes of one object: ${maxObjectBytes}.` }),
})

export const StoredObject = Type.Object({
  key: Type.String(),
  bytes: Type.Integer(),
  contentType: Type.String({ description: 'As it was uploaded.' }),
  sha256: Type.Optional(Type.String({ description: 'In hex; absent for objects that another program stored.' })),
  updatedAt: Type.String({ format: 'date-time' }),
})

/** The object as clients see it. The etag is not included, because it is sent as a header. */
export const shown = ({ key, bytes, contentType, sha256, updatedAt }: ObjectInfo) => ({
  key,
  bytes,
  contentType,
  ...(sha256 === undefined ? {} : { sha256 }),
  updatedAt,
})

export const ObjectList = Type.Object({
  objects: Type.Array(StoredObject),
  prefixes: Type.Array(Type.String(), {
    description: 'With a delimiter: the beginnings of keys up to it, each once.',
  }),
  cursor: Type.Optional(Type.String({ description: 'The cursor of the next page; absent for the last one.' })),
})

export const ListQuery = Type.Object({
  prefix: Type.String({ default: '', maxLength: maxKeyBytes, description: 'How the keys begin.' }),
  delimiter: Type.Optional(
    Type.Literal('/', { description: 'Keys that contain it after the prefix are grouped in `prefixes`.' }),
  ),
  cursor: Type.Optional(
    Type.String({ maxLength: 2_000, description: 'The cursor of the page before, with the same prefix.' }),
  ),
  limit: Type.Integer({
    default: 100,
    minimum: 1,
    maximum: mostObjectsAtOnce,
    description: 'Of objects and prefixes together.',
  }),
})

export const InlineObject = Type.Object({
  ...StoredObject.properties,
  encoding: Type.Union([Type.Literal('utf8'), Type.Literal('base64')], {
    description: '`base64` for content that is not UTF-8.',
  }),
  content: Type.String(),
})

export const KeyParams = Type.Object({
  '*': Type.String({
    minLength: 1,
    maxLength: maxKeyBytes + 1,
    description: `The key; it may have several segments, ${mostSegments} at most.`,
  }),
})

export const Deleted = Type.Object({
  deleted: Type.Integer({ description: `At most ${mostObjectsAtOnce}.` }),
  more: Type.Boolean({ description: 'True: some are left, so send the request again.' }),
})

/** Converts between a cursor and the place after which the next page begins. `placeOf` returns undefined for an invalid cursor. */
export const cursorOf = (after: string): string => Buffer.from(after).toString('base64url')
export function placeOf(cursor: string): string | undefined {
  const bytes = Buffer.from(cursor, 'base64url')
  const text = bytes.toString('utf8')
  const key = text.endsWith(lastCharacter) ? text.slice(0, -lastCharacter.length) : text
  return Buffer.from(text).equals(bytes) && text !== '' && isKeyPrefix(key) ? text : undefined
}
