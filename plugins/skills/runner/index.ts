import { Type } from '@sinclair/typebox'
import { Gauge } from 'prom-client'
import { definePlugin, Settings } from '#kernel'
import { SkillCache, skillErrors } from '#contracts/skills'
import { PlatformTools } from '#contracts/tools'
import { SkillVersions } from './cache.ts'
import { skillRead, skillResource } from './tools.ts'

/** The runner's part of skills: the versions that its sessions keep, and the tools by which models read them. */
export default definePlugin({
  name: 'skill-cache',
  config: Settings({
    maxBytes: Type.Integer({
      default: 256 * 1024 * 1024,
      minimum: 0,
      description:
        'Of the files of skills in memory. Beyond it those that rest longest go; conductors bring them again.',
    }),
  }),
  errors: skillErrors,
  provides: { cache: SkillCache, tools: PlatformTools },
  async setup({ config, metrics }) {
    const cache = new SkillVersions(config.maxBytes)
    const gauge: Gauge = new Gauge({
      name: 'runner_skill_cache_bytes',
      help: 'Files of skills in the memory of this runner.',
      registers: [metrics],
      collect: () => gauge.set(cache.bytes),
    })
    return { cache, tools: { [skillRead.name]: skillRead, [skillResource.name]: skillResource } }
  },
})
