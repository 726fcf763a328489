/**
 * What Codex has to know of the model, as a catalogue of one entry. Its own catalogue gives newer models a JavaScript host, a
 * shell and a search in the place of the session's tools; of a model that it does not know it only guesses.
 */
export const modelFile = (model: string, contextTokens: number): string =>
  JSON.stringify({
    models: [
      {
        slug: model,
        display_name: model,
        description: null,
        supported_reasoning_levels: [],
        shell_type: 'disabled',
        apply_patch_tool_type: null,
        experimental_supported_tools: [],
        supports_search_tool: false,
        base_instructions: '',
        support_verbosity: false,
        default_verbosity: null,
        context_window: contextTokens,
        truncation_policy: { mode: 'tokens', limit: toolOutputTokens },
        input_modalities: ['text', 'image'],
        visibility: 'list',
        supported_in_api: true,
        priority: 1,
        availability_nux: null,
        upgrade: null,
      },
    ],
  })

/** Of one tool result the model is shown this much: the 200,000 characters that `general` shows. */
const toolOutputTokens = 50_000
