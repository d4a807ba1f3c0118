-- Of what the slot holds next: how many messages, and whether one of them is a change that we follow.
SELECT
    count(*),
    coalesce(
        bool_or(
            chr(get_byte(data, 0)) IN ('I', 'U', 'D', 'T')
            -- A transactional message: its kind, flag 1, eight bytes of LSN, then its prefix.
            OR substring(data FROM 1 FOR 2) = '\x4d01' AND substring(data FROM 11 FOR 19) = {prefix}
        ),
        false
    )
FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    {slot}, NULL, {count}, 'proto_version', '1', 'publication_names', {publication}, 'messages', 'true'
)
