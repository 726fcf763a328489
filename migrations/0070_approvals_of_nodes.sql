-- owner: plugins/workflows

-- Where it is told of what a run has wait for people: nodes, and calls of its agents.
ALTER TABLE workflow_runs ADD COLUMN webhook_url text;

-- The time of an agent stands still while its run waits for people: its workflow is woken when it is left, and when it goes on.
CREATE TRIGGER tell_workflow_of_wait AFTER UPDATE OF parked_at ON runs FOR EACH ROW
  WHEN (NEW.id LIKE 'wfrun\_%' AND (NEW.parked_at IS NULL) <> (OLD.parked_at IS NULL))
  EXECUTE FUNCTION tell_workflow();
