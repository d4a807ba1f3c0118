-- The messages with a prefix that the slot sends below an LSN. A message: its kind, flags, eight bytes of LSN, then its
-- prefix.
SELECT data
FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    {slot}, {until}, NULL, 'proto_version', '1', 'publication_names', {publication}, 'messages', 'true'
)
WHERE get_byte(data, 0) = ascii('M') AND substring(data FROM 11 FOR length({prefix})) = {prefix}
