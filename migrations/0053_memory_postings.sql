-- owner: plugins/memory
-- How memories are found. PostgreSQL uses no index for `@@` of a tsvector where row security is forced, since that operator is not
-- leakproof, and its ranking knows no rarity of words. So the terms of each memory are rows here, found by equality alone, and how
-- many memories have a term is kept beside. Triggers keep both: no write and no deletion can forget them.

CREATE TABLE memory_postings (
  tenant_id text NOT NULL,
  bank integer NOT NULL,
  term text COLLATE "C" NOT NULL,
  person integer NOT NULL,
  memory bigint NOT NULL,
  weight smallint NOT NULL,
  length smallint NOT NULL,
  -- Searches read nothing but this index.
  PRIMARY KEY (tenant_id, bank, term, person, memory) INCLUDE (weight, length)
) WITH (autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE TABLE memory_terms (
  tenant_id text NOT NULL,
  bank integer NOT NULL,
  term text COLLATE "C" NOT NULL,
  records integer NOT NULL,
  PRIMARY KEY (tenant_id, bank, term)
) WITH (fillfactor = 70);

-- How many memories of a profile are whose.
CREATE TABLE memory_people (
  tenant_id text NOT NULL,
  bank integer NOT NULL,
  person integer NOT NULL,
  records bigint NOT NULL,
  PRIMARY KEY (tenant_id, bank, person)
) WITH (fillfactor = 50);

ALTER TABLE memory_postings ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_postings FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON memory_postings
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE memory_terms ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_terms FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON memory_terms
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE memory_people ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_people FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON memory_people
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- Rows are changed in the order of their keys, so that no two transactions wait for each other.
CREATE FUNCTION index_memories() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO memory_postings (tenant_id, bank, term, person, memory, weight, length)
    SELECT a.tenant_id, a.bank, t.term, a.person, a.number, t.weight, a.length
    FROM added a CROSS JOIN LATERAL unnest(a.terms, a.weights) AS t (term, weight);
  INSERT INTO memory_terms AS known (tenant_id, bank, term, records)
    SELECT a.tenant_id, a.bank, t.term, count(*)
    FROM added a CROSS JOIN LATERAL unnest(a.terms) AS t (term)
    GROUP BY a.tenant_id, a.bank, t.term ORDER BY a.tenant_id, a.bank, t.term COLLATE "C"
    ON CONFLICT (tenant_id, bank, term) DO UPDATE SET records = known.records + excluded.records;
  INSERT INTO memory_people AS known (tenant_id, bank, person, records)
    SELECT tenant_id, bank, person, count(*) FROM added GROUP BY tenant_id, bank, person ORDER BY tenant_id, bank, person
    ON CONFLICT (tenant_id, bank, person) DO UPDATE SET records = known.records + excluded.records;
  UPDATE memory_banks b SET records = b.records + s.records, words = b.words + s.words, bytes = b.bytes + s.bytes
    FROM (SELECT tenant_id, bank, count(*) AS records, sum(length) AS words, sum(bytes) AS bytes
          FROM added GROUP BY tenant_id, bank) s
    WHERE b.tenant_id = s.tenant_id AND b.bank = s.bank;
  RETURN NULL;
END
$$;

CREATE FUNCTION unindex_memories() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM memory_postings p
    USING gone g CROSS JOIN LATERAL unnest(g.terms) AS t (term)
    WHERE p.tenant_id = g.tenant_id AND p.bank = g.bank AND p.term = t.term AND p.person = g.person AND p.memory = g.number;
  WITH fewer AS (
    SELECT g.tenant_id, g.bank, t.term, count(*) AS records
    FROM gone g CROSS JOIN LATERAL unnest(g.terms) AS t (term) GROUP BY g.tenant_id, g.bank, t.term
  ), held AS (
    SELECT k.tenant_id, k.bank, k.term FROM memory_terms k JOIN fewer f
      ON k.tenant_id = f.tenant_id AND k.bank = f.bank AND k.term = f.term
    ORDER BY k.tenant_id, k.bank, k.term FOR UPDATE OF k
  )
  UPDATE memory_terms k SET records = k.records - f.records FROM fewer f JOIN held h
    ON h.tenant_id = f.tenant_id AND h.bank = f.bank AND h.term = f.term
    WHERE k.tenant_id = f.tenant_id AND k.bank = f.bank AND k.term = f.term;
  DELETE FROM memory_terms k
    USING (SELECT DISTINCT g.tenant_id, g.bank, t.term FROM gone g CROSS JOIN LATERAL unnest(g.terms) AS t (term)) f
    WHERE k.tenant_id = f.tenant_id AND k.bank = f.bank AND k.term = f.term AND k.records <= 0;
  UPDATE memory_people k SET records = k.records - s.records
    FROM (SELECT tenant_id, bank, person, count(*) AS records FROM gone GROUP BY tenant_id, bank, person) s
    WHERE k.tenant_id = s.tenant_id AND k.bank = s.bank AND k.person = s.person;
  DELETE FROM memory_people k USING gone g
    WHERE k.tenant_id = g.tenant_id AND k.bank = g.bank AND k.person = g.person AND k.records <= 0;
  UPDATE memory_banks b
    SET records = b.records - s.records, words = b.words - s.words, bytes = b.bytes - s.bytes
    FROM (SELECT tenant_id, bank, count(*) AS records, sum(length) AS words, sum(bytes) AS bytes
          FROM gone GROUP BY tenant_id, bank) s
    WHERE b.tenant_id = s.tenant_id AND b.bank = s.bank;
  RETURN NULL;
END
$$;

CREATE TRIGGER index_memories AFTER INSERT ON memories REFERENCING NEW TABLE AS added FOR EACH STATEMENT
  EXECUTE FUNCTION index_memories();
CREATE TRIGGER unindex_memories AFTER DELETE ON memories REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
  EXECUTE FUNCTION unindex_memories();
