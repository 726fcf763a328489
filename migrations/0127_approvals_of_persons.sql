-- owner: plugins/approvals
-- What agents asked for on behalf of an end user is exported and erased without reading all approvals of the tenant. The id of an end user may be too
-- long for an index.
CREATE INDEX approvals_of_person ON approvals (tenant_id, hashtextextended(end_user_id, 0), id) WHERE end_user_id IS NOT NULL;
