-- The messages that a slot holds and that may be the pipeline's own, each with the transaction that it is in.
SELECT xid::text::bigint, data
FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    {slot}, NULL, NULL, 'proto_version', '1', 'publication_names', {publication}, 'messages', 'true'
)
WHERE get_byte(data, 0) = ascii('M') AND substring(data FROM 11 FOR 15) = 'parallel_apply.'
