-- owner: plugins/secrets

-- What plugins seal under the master key in tables of their own: the comment of such a column says so, and of what the name is made
-- that it was sealed with. `agent-orc secrets rewrap` and the counts of keys find the columns by it.
COMMENT ON COLUMN mcp_tokens.token IS 'sealed: mcp-tokens/{name}';
COMMENT ON COLUMN mcp_oauth_clients.client IS 'sealed: mcp-oauth-clients/{name}';
COMMENT ON COLUMN app_connections.secret IS 'sealed: app-connections/{id}';
COMMENT ON COLUMN app_authorizations.kept IS 'sealed: app-connections/{connection_id}';
