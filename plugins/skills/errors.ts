import { conflict, errorTable, httpErrors, notFound } from '#kernel'
import { skillErrors } from '#contracts/skills'

export const importErrors = errorTable('skill-imports', {
  notMultipart: {
    status: 415,
    message: 'Send the folder as multipart/form-data: each file as a part `files`, named <folder>/<path>.',
  },
  tooManyImports: {
    status: 429,
    retry: true,
    message: 'Two imports of this tenant are already being read; repeat this one when one of them has ended.',
  },
  brokenUpload: { status: 400, message: 'The multipart body is incomplete, or not valid multipart/form-data.' },
})

export const noSuchSkill = () => notFound({ message: 'There is no skill of that name.' })
export const noSuchFile = () => notFound({ message: 'The skill has no such file.' })
export const noSuchStaging = () =>
  notFound({ message: 'There is no such import, or it was committed or has expired: import the folder again.' })
export const nameTaken = (name: string) =>
  conflict({ message: `There already is a skill named '${name}'; delete it first, or import a new version of it.` })
export const invalidSkill = (problems: readonly string[]) =>
  skillErrors.invalidSkill({ message: problems.join(' '), detail: { problems } })
export const tooManyParts = (most: number) =>
  httpErrors.bodyTooLarge({ message: `The upload has more than ${most} parts; a skill has a few files.` })
