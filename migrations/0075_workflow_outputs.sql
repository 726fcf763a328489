-- owner: plugins/workflows
-- Large outputs of workflow runs are linked objects, as contents of runs are: whoever deletes a workflow run lets go of them.

CREATE TRIGGER unlink_objects AFTER DELETE ON workflow_runs REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION unlink_objects();
