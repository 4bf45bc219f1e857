-- On a synced table, after a write: refuses what clients would not learn of. Inserts and updates are checked row by
-- row, in memory; deletes statement by statement, or row by row where a table is partitioned.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $function$
DECLARE
    owner bigint;
    span text;
    doubtful text[];
    is_known text;
    known boolean;
    problem text;
    hint text;
BEGIN
    CASE TG_OP
    WHEN 'INSERT', 'UPDATE' THEN
        IF TG_OP = 'UPDATE' AND NEW.{key} IS DISTINCT FROM OLD.{key}
                AND {owner_of_new} IS DISTINCT FROM {owner_of_old} THEN
            problem := 'a row of % cannot move to another owner';
            hint := 'Delete the row, and insert a new one, with an id of its own, for the other owner.';
        ELSE
            owner := hashtextextended({owner_of_new}::text, {revisions_literal}::regclass::bigint);
            span := split_part(split_part(
                current_setting('baukit_sync.allocated_' || (owner & 255), true), ' ' || owner || ':', 2), ' ', 1);
            IF NEW.revision > nullif(split_part(span, '-', 1), '')::bigint
                    AND NEW.revision <= nullif(split_part(span, '-', 2), '')::bigint
                    AND (TG_OP = 'INSERT' OR NEW.revision >= coalesce(OLD.revision, 0)) THEN
                RETURN NULL;
            END IF;
            problem := 'the revision of a row of % was not allocated for its owner in this transaction';
            hint := 'Write through a tracked session or update_where, or stamp the row with next_revision.';
        END IF;
    WHEN 'DELETE' THEN
        IF TG_LEVEL = 'STATEMENT' THEN
            doubtful := ARRAY(
                SELECT DISTINCT gone.owner::text
                FROM (SELECT {owner_of_deleted} AS owner, deleted_at, revision FROM deleted_rows) AS gone
                WHERE EXISTS (SELECT FROM {revisions} WHERE owner_id = gone.owner)
                AND (gone.deleted_at IS NULL OR NOT EXISTS (
                    SELECT FROM {horizons} WHERE owner_id = gone.owner AND horizon_revision >= gone.revision)));
        ELSE
            doubtful := ARRAY(
                SELECT gone.owner::text
                FROM (SELECT {owner_of_old} AS owner) AS gone
                WHERE EXISTS (SELECT FROM {revisions} WHERE owner_id = gone.owner)
                AND (OLD.deleted_at IS NULL OR NOT EXISTS (
                    SELECT FROM {horizons} WHERE owner_id = gone.owner AND horizon_revision >= OLD.revision)));
        END IF;
        IF doubtful = '{{}}' THEN
            RETURN NULL;
        END IF;
        -- When an owner is erased, a cascade may come to these rows before it comes to the counter.
        SELECT format('SELECT EXISTS (SELECT FROM %s WHERE %I = ANY($1::%s[]))',
            confrelid::regclass, attname, format_type(atttypid, atttypmod))
        INTO is_known
        FROM pg_constraint JOIN pg_attribute ON attrelid = confrelid AND attnum = confkey[1]
        WHERE conrelid = {revisions_literal}::regclass AND contype = 'f' AND confdeltype = 'c'
        LIMIT 1;
        IF is_known IS NOT NULL THEN
            EXECUTE is_known INTO known USING doubtful;
            IF NOT known THEN
                RETURN NULL;
            END IF;
        END IF;
        problem := 'a row of % that no purge has covered cannot be deleted';
        hint := 'Set deleted_at with a new revision, or use soft_delete_where; an owner is erased counter first.';
    WHEN 'TRUNCATE' THEN
        problem := 'clients keep the rows of % that are truncated';
        hint := 'Use soft_delete_where; to empty a test database, disable the trigger.';
    END CASE;
    RAISE EXCEPTION USING
        MESSAGE = replace(problem, '%', quote_ident(TG_TABLE_NAME)),
        HINT = hint,
        ERRCODE = 'check_violation',
        SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END
$function$
