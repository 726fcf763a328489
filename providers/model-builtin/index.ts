import { AppError } from '#kernel'
import { defineModelProvider } from '#kit/models'
import { demoModel } from './model.ts'

/** `builtin/demo`: answers by rules, so that a fresh installation works without any key. Its answers say that they come from rules. */
export default defineModelProvider({
  name: 'builtin',
  async create() {
    const demo = demoModel()
    return {
      contract: 'model/1',
      model(modelId) {
        if (modelId === 'demo') return demo
        throw new AppError('unknown_model', 400, { message: `The provider 'builtin' has one model: demo.` })
      },
    }
  },
})
