-- owner: plugins/publishing
-- The networks from which a key of an agent may be used. Null: from anywhere.
ALTER TABLE published_agent_keys ADD COLUMN allowed_addresses cidr[];
