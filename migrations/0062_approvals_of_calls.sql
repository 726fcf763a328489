-- owner: plugins/approvals

-- Beside nodes of workflows, calls of tools wait for people: those of runs whose profile says so.
ALTER TABLE approvals
  ALTER COLUMN workflow_run_id DROP NOT NULL,
  ALTER COLUMN node_id DROP NOT NULL,
  ADD COLUMN run_id text,
  ADD COLUMN session_id text,
  ADD COLUMN call_key text,
  ADD COLUMN profile text,
  ADD COLUMN tool text,
  -- JSON as text, without the escapes that PostgreSQL refuses to read.
  ADD COLUMN arguments text,
  ADD COLUMN end_user_id text,
  -- Who may decide.
  ADD COLUMN role text NOT NULL DEFAULT 'member' CHECK (role IN ('member', 'admin', 'owner')),
  ADD COLUMN webhook_url text,
  ADD CONSTRAINT approvals_of_one CHECK ((workflow_run_id IS NULL) <> (run_id IS NULL)),
  ADD FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE;
CREATE INDEX approvals_of_run ON approvals (tenant_id, run_id) WHERE run_id IS NOT NULL;
CREATE INDEX approvals_of_workflow ON approvals (tenant_id, workflow_run_id) WHERE workflow_run_id IS NOT NULL;
CREATE INDEX approvals_waiting ON approvals (tenant_id, expires_at) WHERE status = 'waiting';

-- Who holds a webhook is told with the row, whoever opens or closes it.
CREATE FUNCTION tell_approval() RETURNS trigger LANGUAGE plpgsql AS $$
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
      'workflowRunId', NEW.workflow_run_id, 'nodeId', NEW.node_id, 'endUserId', NEW.end_user_id,
      'expiresAt', to_char(NEW.expires_at AT TIME ZONE 'UTC', iso), 'onExpiry', NEW.on_expiry,
      'comment', NEW.comment, 'resolvedBy', NEW.resolved_by, 'resolvedAt', to_char(NEW.resolved_at AT TIME ZONE 'UTC', iso)
    )))::text);
  PERFORM pg_notify('webhooks', NEW.tenant_id);
  RETURN NULL;
END
$$;
CREATE TRIGGER tell_approval_waiting AFTER INSERT ON approvals FOR EACH ROW
  WHEN (NEW.webhook_url IS NOT NULL) EXECUTE FUNCTION tell_approval();
CREATE TRIGGER tell_approval_resolved AFTER UPDATE OF status ON approvals FOR EACH ROW
  WHEN (NEW.webhook_url IS NOT NULL AND OLD.status = 'waiting' AND NEW.status <> 'waiting') EXECUTE FUNCTION tell_approval();
