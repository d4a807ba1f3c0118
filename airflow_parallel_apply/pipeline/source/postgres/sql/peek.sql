SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    {slot}, {until}, {count}, 'proto_version', '1', 'publication_names', {publication}, 'messages', 'true'
)
