-- Creates the group roles that the migrations grant rights to. Roles belong to the whole server: another database's migration
-- may create them at the same moment, and that is no error.
-- On every database.
DO $$
DECLARE
    missing text;
BEGIN
    FOREACH missing IN ARRAY ARRAY['runherd_coordinator', 'runherd_worker', 'runherd_client', 'runherd_readonly'] LOOP
        IF EXISTS (SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = missing) THEN
            CONTINUE;
        END IF;
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', missing);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END LOOP;
END $$
