-- Of what the slot holds next: how many messages, whether one of them is a change that we follow and do not have yet,
-- and the first message. `known`: the transaction that we have, as the slot's place tells.
SELECT
    count(*),
    coalesce(
        bool_or(
            (chr(get_byte(data, 0)) IN ('I', 'U', 'D', 'T')
            -- A transactional message: its kind, flag 1, eight bytes of LSN, then its prefix.
            OR substring(data FROM 1 FOR 2) = '\x4d01' AND EXISTS (
                SELECT
                FROM unnest(ARRAY[{prefixes}]::bytea[]) AS told (prefix)
                WHERE substring(data FROM 11 FOR octet_length(told.prefix)) = told.prefix
            ))
            AND xid::text <> {known}
        ),
        false
    ),
    (array_agg(data) FILTER (WHERE ordinal = 1))[1]
FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    {slot}, NULL, {count}, 'proto_version', '1', 'publication_names', {publication}, 'messages', 'true'
) WITH ORDINALITY AS message (lsn, xid, data, ordinal)
