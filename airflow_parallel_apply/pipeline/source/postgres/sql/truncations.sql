-- The truncations and the descriptions of tables that a slot holds, in order, and where in the WAL each is.
SELECT (lsn - '0/0')::bigint, data
FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    {slot}, NULL, NULL, 'proto_version', '1', 'publication_names', {publication}
)
WHERE get_byte(data, 0) IN (ascii('R'), ascii('T'))
