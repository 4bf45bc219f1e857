-- On a synced table, before a write: stamps rows whose writer has not done so, and turns deletes into tombstones where
-- its trigger asks for it. Revisions are allocated in blocks that double, so that a statement that writes a thousand
-- rows raises the counter ten times; what is left of a block is a gap.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $function$
DECLARE
    owner bigint;
    setting text;
    known text;
    entry text;
    place integer;
    block text := '';
    next bigint;
    last bigint;
    size integer := 0;
    child record;
    cascades boolean;
BEGIN
    IF TG_OP = 'DELETE' THEN
        cascades := current_setting('baukit_sync.cascade', true) = 'on';
        -- What a foreign key deletes must go, or the key would point nowhere. An owner without a counter is erased.
        IF (pg_trigger_depth() > 1 AND cascades IS NOT TRUE)
                OR NOT EXISTS (SELECT FROM {revisions} WHERE owner_id = {owner_of_old}) THEN
            RETURN OLD;
        END IF;
        -- Tombstones do not come here: their deletion is a purge's.
        UPDATE {table} AS mine SET deleted_at = clock_timestamp() WHERE {same_row};
        FOR child IN
            SELECT conrelid::regclass AS name, (
                SELECT string_agg(format('%I = ($1).%I', mine.attname, theirs.attname), ' AND ')
                FROM unnest(conkey, confkey) AS pair (own, other)
                JOIN pg_attribute AS mine ON mine.attrelid = conrelid AND mine.attnum = pair.own
                JOIN pg_attribute AS theirs ON theirs.attrelid = confrelid AND theirs.attnum = pair.other
            ) AS condition
            FROM pg_constraint
            WHERE confrelid = TG_RELID AND contype = 'f' AND confdeltype = 'c' AND EXISTS (
                SELECT FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
                WHERE tgrelid = conrelid AND tgenabled <> 'D' AND tgtype & 8 = 8
                AND obj_description(tgfoid, 'pg_proc') LIKE 'baukit-sync stamp%')
        LOOP
            PERFORM set_config('baukit_sync.cascade', 'on', true);
            EXECUTE format('DELETE FROM %s WHERE deleted_at IS NULL AND %s', child.name, child.condition) USING OLD;
            PERFORM set_config('baukit_sync.cascade', CASE WHEN cascades THEN 'on' ELSE '' END, true);
        END LOOP;
        RETURN NULL;
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.revision IS NOT NULL THEN
            RETURN NEW;
        END IF;
        NEW.updated_at := coalesce(NEW.updated_at, clock_timestamp());
    ELSE
        IF NEW.{key} IS DISTINCT FROM OLD.{key} AND {owner_of_new} IS DISTINCT FROM {owner_of_old} THEN
            RAISE EXCEPTION USING
                MESSAGE = format('a row of %I cannot move to another owner', TG_TABLE_NAME),
                HINT = 'Delete the row, and insert a new one, with an id of its own, for the other owner.',
                ERRCODE = 'check_violation',
                SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
        END IF;
        IF NEW.revision IS NOT NULL AND NEW.revision IS DISTINCT FROM OLD.revision THEN
            RETURN NEW;
        END IF;
        IF NEW.updated_at IS NOT DISTINCT FROM OLD.updated_at THEN
            NEW.updated_at := clock_timestamp();
        END IF;
    END IF;
    owner := hashtextextended({owner_of_new}::text, {revisions_literal}::regclass::bigint);
    setting := 'baukit_sync.reserved_' || (owner & 255);
    known := coalesce(current_setting(setting, true), '');
    entry := ' ' || owner || ':';
    place := strpos(known, entry);
    IF place > 0 THEN
        block := split_part(substr(known, place + length(entry)), ' ', 1);
        next := split_part(block, '-', 1);
        last := split_part(block, '-', 2);
        size := split_part(block, '-', 3);
    END IF;
    IF next IS NULL OR next > last OR next <= OLD.revision THEN
        -- A block that cannot be remembered has one revision.
        size := CASE WHEN place = 0 AND length(known) >= 32000 THEN 1 ELSE least(greatest(size * 2, 1), 1000) END;
        UPDATE {revisions} SET last_revision = last_revision + size WHERE owner_id = {owner_of_new}
        RETURNING last_revision INTO last;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING
                MESSAGE = format('the owner of a row of %I has no counter', TG_TABLE_NAME),
                HINT = 'Create it with ensure_owner, when the owner signs up.',
                ERRCODE = 'foreign_key_violation',
                SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
        END IF;
        next := last - size + 1;
    END IF;
    NEW.revision := next;
    IF place > 0 THEN
        known := replace(known, entry || block, entry || next + 1 || '-' || last || '-' || size);
    ELSIF size = 1 AND length(known) >= 32000 THEN
        RETURN NEW;
    ELSE
        known := known || entry || next + 1 || '-' || last || '-' || size;
    END IF;
    PERFORM set_config(setting, known, true);
    RETURN NEW;
END
$function$
