-- On sync_revisions, before a counter is raised: remembers, until the transaction ends, what was allocated.
-- The memory is a setting, which a savepoint takes back together with the counter. There are 256 of them, so that
-- none grows long; each holds " <owner's hash>:<counter before>-<counter now>" for its owners.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $function$
DECLARE
    owner bigint := hashtextextended(NEW.owner_id::text, TG_RELID::bigint);
    setting text := 'baukit_sync.allocated_' || (owner & 255);
    known text := coalesce(current_setting(setting, true), '');
    entry text := ' ' || owner || ':';
    place integer := strpos(known, entry);
    span text;
BEGIN
    IF place > 0 THEN
        span := split_part(substr(known, place + length(entry)), ' ', 1);
        known := replace(known, entry || span, entry || split_part(span, '-', 1) || '-' || NEW.last_revision);
    ELSIF length(known) < 32000 THEN
        known := known || entry || OLD.last_revision || '-' || NEW.last_revision;
    END IF;
    PERFORM set_config(setting, known, true);
    RETURN NEW;
END
$function$
