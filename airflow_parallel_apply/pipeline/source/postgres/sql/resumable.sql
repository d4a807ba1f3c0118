-- How the transaction begins that the slot is to begin with; from wherever the slot stands, which advances nothing.
SELECT data
FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    {slot}, {until}, NULL, 'proto_version', '1', 'publication_names', {publication}, 'messages', 'true'
)
WHERE get_byte(data, 0) = ascii('B') AND substring(data FROM 2 FOR 8) = {lsn}
