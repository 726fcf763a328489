import { forbidden, invalidField, invalidRequest, notFound } from '#kernel'

export const unknownProfile = () => notFound({ message: 'There is no profile of that name, and no memory of one.' })
export const unknownMemory = () => notFound({ message: 'The profile has no memory of that id.' })
export const notTheirs = () =>
  forbidden({ message: 'That memory is shared by everybody who uses this agent, so it cannot be changed here.' })
export const nothingToKeep = () =>
  invalidRequest({
    message: 'Either rawInput or processedContent is required: a text to make the memory of, or the memory itself.',
    detail: { issues: [{ path: 'body', message: 'must have rawInput or processedContent' }] },
  })
export const unknownSuperseded = () => invalidField('body/supersedes', 'is the id of no memory of this profile')
export const noSuchTime = (path: string) => invalidField(path, 'is no time that there is')
