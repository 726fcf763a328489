-- owner: plugins/approvals

-- The webhook says who may decide, as the API does.
CREATE OR REPLACE FUNCTION tell_approval() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  iso CONSTANT text := 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"';
BEGIN
  INSERT INTO webhook_deliveries (tenant_id, id, url, body)
  VALUES (NEW.tenant_id, 'msg_' || replace(gen_random_uuid()::text, '-', ''), NEW.webhook_url, json_build_object(
    'type', CASE NEW.status WHEN 'waiting' THEN 'approval.waiting' ELSE 'approval.resolved' END,
    'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', iso),
    'data', json_strip_nulls(json_build_object(
      'id', NEW.id, 'kind', CASE WHEN NEW.run_id IS NULL THEN 'node' ELSE 'tool' END, 'status', NEW.status, 'message', NEW.message,
      'runId', NEW.run_id, 'sessionId', NEW.session_id, 'profile', NEW.profile, 'tool', NEW.tool,
      -- The whole of them is at GET /api/approvals/{id}.
      'arguments', CASE WHEN length(NEW.arguments) <= 65536 THEN NEW.arguments::json END,
      'argumentsTruncated', CASE WHEN length(NEW.arguments) > 65536 THEN true END,
      'workflowRunId', NEW.workflow_run_id, 'nodeId', NEW.node_id, 'endUserId', NEW.end_user_id, 'role', NEW.role,
      'expiresAt', to_char(NEW.expires_at AT TIME ZONE 'UTC', iso), 'onExpiry', NEW.on_expiry,
      'comment', NEW.comment, 'resolvedBy', NEW.resolved_by, 'resolvedAt', to_char(NEW.resolved_at AT TIME ZONE 'UTC', iso)
    )))::text);
  PERFORM pg_notify('webhooks', NEW.tenant_id);
  RETURN NULL;
END
$$;
