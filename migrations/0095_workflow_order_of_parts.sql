-- owner: plugins/workflows

-- Parts of a map have one position: without their number each claim sorted all that were ready, and each part that ended looked through all
-- that had ended before it.
DROP INDEX workflow_nodes_open;
CREATE INDEX workflow_nodes_open ON workflow_nodes (tenant_id, run_id, status, priority DESC, position, part) WHERE status IN (1, 2);
CREATE INDEX workflow_nodes_pending_parts ON workflow_nodes (tenant_id, run_id, parent, part) WHERE parent IS NOT NULL AND status = 0;
