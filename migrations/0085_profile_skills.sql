-- owner: plugins/skills
-- Which profiles name a skill. A skill that changes raises the revision of these, and looked for them in the documents of all
-- profiles of its tenant, which row security lets no index of documents answer: an index is asked before a policy for equality only.

CREATE TABLE profile_skills (
  tenant_id text NOT NULL,
  skill text NOT NULL,
  profile text NOT NULL,
  PRIMARY KEY (tenant_id, skill, profile)
);
ALTER TABLE profile_skills ENABLE ROW LEVEL SECURITY;
ALTER TABLE profile_skills FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON profile_skills
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- The document says which rows there are, also when a release before this one writes it. One without skills costs a condition.
CREATE FUNCTION list_profile_skills() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN
    DELETE FROM profile_skills WHERE tenant_id = OLD.tenant_id AND profile = OLD.name
      AND skill = ANY (ARRAY(SELECT jsonb_array_elements_text(OLD.document -> 'skills')));
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO profile_skills (tenant_id, skill, profile)
    SELECT DISTINCT NEW.tenant_id, skill, NEW.name FROM jsonb_array_elements_text(NEW.document -> 'skills') AS skill;
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER list_new_skills AFTER INSERT ON profiles FOR EACH ROW
  WHEN (NEW.document -> 'skills' <> '[]') EXECUTE FUNCTION list_profile_skills();
CREATE TRIGGER list_changed_skills AFTER UPDATE OF document ON profiles FOR EACH ROW
  WHEN (NEW.document -> 'skills' IS DISTINCT FROM OLD.document -> 'skills') EXECUTE FUNCTION list_profile_skills();
CREATE TRIGGER list_former_skills AFTER DELETE ON profiles FOR EACH ROW
  WHEN (OLD.document -> 'skills' <> '[]') EXECUTE FUNCTION list_profile_skills();

-- Forced row security binds the owner of the table as well, so it is lifted for this statement; the transaction holds the table.
ALTER TABLE profiles NO FORCE ROW LEVEL SECURITY;
ALTER TABLE profile_skills NO FORCE ROW LEVEL SECURITY;
INSERT INTO profile_skills (tenant_id, skill, profile)
SELECT DISTINCT tenant_id, skill, name FROM profiles, jsonb_array_elements_text(document -> 'skills') AS skill;
ALTER TABLE profile_skills FORCE ROW LEVEL SECURITY;
ALTER TABLE profiles FORCE ROW LEVEL SECURITY;

-- All profiles of a skill in one statement: counting one by one wrote the row of the tenant as often as there are profiles. What
-- `using-*` stands for are skills of such names.
CREATE OR REPLACE FUNCTION note_skill_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  tenant text := CASE WHEN TG_OP = 'DELETE' THEN OLD.tenant_id ELSE NEW.tenant_id END;
  changed text := CASE WHEN TG_OP = 'DELETE' THEN OLD.name ELSE NEW.name END;
  names text[] := CASE WHEN starts_with(changed, 'using-') THEN ARRAY[changed, 'using-*'] ELSE ARRAY[changed] END;
BEGIN
  -- By a statement of its own: what the next one reads was committed before nobody else could write it.
  PERFORM 1 FROM tenants WHERE id = tenant FOR NO KEY UPDATE;
  WITH attached AS MATERIALIZED (
    SELECT profile, row_number() OVER (ORDER BY profile) AS place
    FROM (SELECT DISTINCT profile FROM profile_skills WHERE tenant_id = tenant AND skill = ANY (names)) AS named
  ), raised AS (
    UPDATE tenants SET broadcast_revision = broadcast_revision + (SELECT count(*) FROM attached)
    WHERE id = tenant AND EXISTS (SELECT FROM attached)
    RETURNING broadcast_revision - (SELECT count(*) FROM attached) AS before
  )
  INSERT INTO broadcast_changes (tenant_id, kind, key, revision)
  SELECT tenant, 'profile', profile, before + place FROM raised, attached
  ON CONFLICT (tenant_id, kind, key) DO UPDATE SET revision = EXCLUDED.revision;
  RETURN NULL;
END
$$;
