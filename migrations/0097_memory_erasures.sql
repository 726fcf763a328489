-- owner: plugins/memory
-- End users whose memories were erased, by the number that stands for them in postings: what a run has begun before brings none back, as
-- what people have said is read some minutes later, and an agent may be about to save.
CREATE TABLE memory_erasures (
  tenant_id text NOT NULL,
  person integer NOT NULL,
  at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, person)
);
ALTER TABLE memory_erasures ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_erasures FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON memory_erasures
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
