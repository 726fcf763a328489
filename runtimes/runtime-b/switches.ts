/**
 * Features of Codex 0.163 that are on unless they are switched off: everything that acts on the machine, calls home, asks a
 * person, or gives the model tools that are not the session's. A test compares this with what the installed program still has on.
 */
const off: Readonly<Record<string, readonly string[]>> = {
  'tools of the machine': [
    'shell_tool unified_exec unified_exec_tty shell_snapshot write_stdin_approval view_image hooks',
    'code_mode_host code_mode_interrupt computer_use workspace_dependencies worktrees',
    'browser_use browser_use_external browser_use_full_cdp_access browser_annotation_api',
    'in_app_browser in_app_chat in_app_dictation in_app_local_automation in_app_updates in_app_voice',
  ],
  "tools that are not the session's": [
    'image_generation multi_agent goals sleep_tool tool_suggest mentions_v2 realtime_conversation',
    'apps plugins plugin_sharing remote_plugin skill_search skill_mcp_dependency_install',
  ],
  'questions to a person': [
    'guardian_approval guardian_reuse_parent_compaction auth_elicitation tool_call_mcp_elicitation',
  ],
  'calls to the vendor': [
    'api_key_model_discovery api_key_cyber_access_programs cli_daybreak fast_mode ultrafast_mode',
    'daemon_auto_start system_proxy_fallback',
  ],
  "what only the vendor's own servers read": ['enable_request_compression compaction_image_budget content_item_kinds'],
  'a dead model server tried for ever': ['unbounded_connection_retries'],
}

/** Images of a prompt are not said back to us: twice, they would be the longest lines by far. */
const on = 'omit_app_server_notification_media'

const settings: Readonly<Record<string, unknown>> = {
  approval_policy: 'never',
  sandbox_mode: 'read-only',
  web_search: 'disabled',
  'tools.experimental_request_user_input.enabled': false,
  'tools.update_plan.enabled': false,
  'skills.bundled.enabled': false,
  'skills.include_instructions': false,
  'shell_environment_policy.inherit': 'none',
  // The instructions are the profile's alone.
  include_permissions_instructions: false,
  include_environment_context: false,
  include_apps_instructions: false,
  include_collaboration_mode_instructions: false,
  project_doc_max_bytes: 0,
  // It would tell the model of processes that cannot be there.
  'agents.interrupt_message': false,
  // Summaries are refused by models that do not think.
  model_reasoning_summary: 'none',
  'analytics.enabled': false,
  'feedback.enabled': false,
  'otel.exporter': 'none',
  'otel.trace_exporter': 'none',
  'otel.metrics_exporter': 'none',
  check_for_update_on_startup: false,
  'history.persistence': 'none',
  suppress_unstable_features_warning: true,
}

/** What a process is started with. Nothing secret: everybody on the machine can read it. */
export function switches(more: Readonly<Record<string, unknown>> = {}): string[] {
  const features = Object.values(off).flatMap((lines) => lines.flatMap((names) => names.split(' ')))
  const all = Object.entries({
    ...Object.fromEntries(features.map((name) => [`features.${name}`, false])),
    [`features.${on}`]: true,
    ...settings,
    ...more,
  })
  // Strings, numbers and booleans look alike in JSON and TOML.
  return all.flatMap(([key, value]) => ['-c', `${key}=${JSON.stringify(value)}`])
}
