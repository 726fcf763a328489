import { AppError } from '#kernel'

export const skillTooLarge = (name: string): AppError =>
  new AppError('skill_too_large', 500, {
    message: `The skill '${name}' is larger than 8 MiB or has more than 500 files.`,
  })
