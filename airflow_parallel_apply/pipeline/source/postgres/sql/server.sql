-- Which server and database this is, and who we are there.
SELECT
    (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
    current_database()::text,
    current_user::text
