-- owner: plugins/memory
-- A search whose filter lets few memories pass begins with these.
CREATE INDEX memories_category ON memories (tenant_id, bank, category, number) WHERE category IS NOT NULL;
CREATE INDEX memories_event ON memories (tenant_id, bank, event_at, number) WHERE event_at IS NOT NULL;
