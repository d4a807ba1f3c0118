-- The descriptions of tables that a slot holds, and the messages that may tell of partitions that are gone, in order, each
-- with its transaction. A message: its kind, flag 1, eight bytes of LSN, then its prefix.
SELECT xid::text::bigint, data
FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    {slot}, NULL, NULL, 'proto_version', '1', 'publication_names', {publication}, 'messages', 'true'
)
WHERE get_byte(data, 0) = ascii('R')
    OR substring(data FROM 1 FOR 2) = '\x4d01' AND substring(data FROM 11 FOR 23) = '\x706172616c6c656c5f6170706c792e72656d6f76616c00'
