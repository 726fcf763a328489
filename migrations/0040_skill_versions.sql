-- owner: plugins/skills
-- What depends on skills, as triggers: whoever writes a session or a skill cannot forget it.

-- A session keeps the versions of its snapshot. For a session without skills the condition is all that this costs.
CREATE FUNCTION pin_skills() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO skill_pins (tenant_id, session_id, digest)
  SELECT NEW.tenant_id, NEW.id, pinned ->> 'digest'
  FROM jsonb_array_elements(NEW.profile_snapshot -> 'pinnedSkills') AS pinned
  ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;
CREATE TRIGGER pin_skills AFTER INSERT ON sessions FOR EACH ROW
  WHEN (NEW.profile_snapshot ? 'pinnedSkills') EXECUTE FUNCTION pin_skills();

-- A profile whose skill changed has changed: what conductors remember of it is out of date. Its revision says so.
CREATE FUNCTION note_skill_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  tenant text := CASE WHEN TG_OP = 'DELETE' THEN OLD.tenant_id ELSE NEW.tenant_id END;
  skill text := CASE WHEN TG_OP = 'DELETE' THEN OLD.name ELSE NEW.name END;
  attached text;
  newest bigint;
BEGIN
  FOR attached IN
    SELECT name FROM profiles
    WHERE tenant_id = tenant AND (document -> 'skills' ? skill OR document -> 'skills' ? 'using-*') ORDER BY name
  LOOP
    UPDATE tenants SET broadcast_revision = broadcast_revision + 1 WHERE id = tenant RETURNING broadcast_revision INTO newest;
    IF newest IS NOT NULL THEN
      INSERT INTO broadcast_changes (tenant_id, kind, key, revision) VALUES (tenant, 'profile', attached, newest)
      ON CONFLICT (tenant_id, kind, key) DO UPDATE SET revision = EXCLUDED.revision;
    END IF;
  END LOOP;
  RETURN NULL;
END
$$;
CREATE TRIGGER note_change AFTER INSERT OR DELETE OR UPDATE OF digest ON skills
  FOR EACH ROW EXECUTE FUNCTION note_skill_change();
