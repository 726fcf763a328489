import { errorTable } from '#kernel'
import { defineModelProvider } from '#kit/models'
import { demoModel } from './model.ts'

const builtinErrors = errorTable('model-builtin', {
  unknownModel: { status: 400, message: `The provider 'builtin' has one model: demo.` },
})

/** `builtin/demo`: answers by rules, so that a fresh installation works without any key. Its answers say that they come from rules. */
export default defineModelProvider({
  name: 'builtin',
  errors: builtinErrors,
  async create() {
    const demo = demoModel()
    return {
      contract: 'model/1',
      model(modelId) {
        if (modelId === 'demo') return demo
        throw builtinErrors.unknownModel()
      },
    }
  },
})
