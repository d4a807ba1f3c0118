-- What the log in `log/` was captured from: the keys of one table per type, all replica identities, and a message.
-- A table's name says the type of its key. Statements are separated by empty lines; each is a transaction.

CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'happy')

CREATE DOMAIN positive AS numeric CHECK (VALUE > 0)

CREATE DOMAIN label AS text

CREATE TABLE k_smallint (k smallint PRIMARY KEY, v text)

CREATE TABLE k_integer (k integer PRIMARY KEY, v text)

CREATE TABLE k_bigint (k bigint PRIMARY KEY, v text)

CREATE TABLE k_numeric (k numeric PRIMARY KEY, v text)

CREATE TABLE k_numeric_10_2 (k numeric(10,2) PRIMARY KEY, v text)

CREATE TABLE k_real (k real PRIMARY KEY, v text)

CREATE TABLE k_double (k double precision PRIMARY KEY, v text)

CREATE TABLE k_text (k text PRIMARY KEY, v text)

CREATE TABLE k_text_c (k text COLLATE "C" PRIMARY KEY, v text)

CREATE TABLE k_varchar (k varchar(20) PRIMARY KEY, v text)

CREATE TABLE k_char (k char(6) PRIMARY KEY, v text)

CREATE TABLE k_uuid (k uuid PRIMARY KEY, v text)

CREATE TABLE k_date (k date PRIMARY KEY, v text)

CREATE TABLE k_timestamp (k timestamp PRIMARY KEY, v text)

CREATE TABLE k_timestamp_3 (k timestamp(3) PRIMARY KEY, v text)

CREATE TABLE k_timestamptz (k timestamptz PRIMARY KEY, v text)

CREATE TABLE k_time (k time PRIMARY KEY, v text)

CREATE TABLE k_interval (k interval PRIMARY KEY, v text)

CREATE TABLE k_boolean (k boolean PRIMARY KEY, v text)

CREATE TABLE k_bytea (k bytea PRIMARY KEY, v text)

CREATE TABLE k_enum (k mood PRIMARY KEY, v text)

CREATE TABLE k_domain_numeric (k positive PRIMARY KEY, v text)

CREATE TABLE k_domain_text (k label PRIMARY KEY, v text)

CREATE TABLE k_jsonb (k jsonb PRIMARY KEY, v text)

CREATE TABLE k_inet (k inet PRIMARY KEY, v text)

CREATE TABLE k_oid (k oid PRIMARY KEY, v text)

CREATE TABLE k_integers (k integer[] PRIMARY KEY, v text)

CREATE TABLE k_money (k money PRIMARY KEY, v text)

CREATE TABLE k_name (k name PRIMARY KEY, v text)

CREATE TABLE k_bit (k bit(4) PRIMARY KEY, v text)

CREATE TABLE k_pg_lsn (k pg_lsn PRIMARY KEY, v text)

CREATE TABLE k_two (a integer, b text, v text, PRIMARY KEY (a, b))

CREATE TABLE k_two_numeric_char (a numeric, b char(3), v text, PRIMARY KEY (b, a))

CREATE TABLE k_three (a date, b bigint, c uuid, v text, PRIMARY KEY (a, b, c))

CREATE TABLE k_two_of_which_one_interval (a integer, b interval, v text, PRIMARY KEY (a, b))

CREATE TABLE i_full_with_key (k integer PRIMARY KEY, v text)

ALTER TABLE i_full_with_key REPLICA IDENTITY FULL

CREATE TABLE i_full_without_key (a integer, v text)

ALTER TABLE i_full_without_key REPLICA IDENTITY FULL

CREATE TABLE i_index (a integer NOT NULL, b text NOT NULL, v text)

CREATE UNIQUE INDEX i_index_b ON i_index (b)

ALTER TABLE i_index REPLICA IDENTITY USING INDEX i_index_b

CREATE TABLE i_nothing (a integer, v text)

ALTER TABLE i_nothing REPLICA IDENTITY NOTHING

CREATE TABLE i_default_without_key (a integer, v text)

-- follow

INSERT INTO k_smallint VALUES (-32768, 'a'), (0, 'b'), (7, 'c'), (32767, 'd')

INSERT INTO k_integer SELECT n * 7919 - 40000, 'v' || n FROM generate_series(1, 20) n

INSERT INTO k_bigint VALUES (-9223372036854775808, 'a'), (0, 'b'), (9223372036854775807, 'c')

INSERT INTO k_numeric VALUES (0, 'a'), (1.0, 'b'), (1.10, 'c'), (-100, 'd'), (1e30, 'e'), (0.000001, 'f'), ('NaN', 'g'), (123456789012345678901234567890.123456789, 'h')

INSERT INTO k_numeric_10_2 VALUES (0, 'a'), (1, 'b'), (1.1, 'c'), (-99999999.99, 'd')

INSERT INTO k_real VALUES ('-0', 'a'), (1.5, 'b'), ('NaN', 'c'), ('Infinity', 'd'), (3.4e38, 'e')

INSERT INTO k_double VALUES ('-0', 'a'), (1.5, 'b'), ('NaN', 'c'), ('-Infinity', 'd'), (1e-300, 'e'), (0.1, 'f')

INSERT INTO k_text VALUES ('', 'a'), ('a', 'b'), ('a ', 'c'), (E'tab\tand\\backslash', 'd'), (E'line\nbreak', 'e'), ('Grüße, 世界', 'f'), ('a,b', 'g')

INSERT INTO k_text_c VALUES ('', 'a'), ('Z', 'b'), ('a', 'c')

INSERT INTO k_varchar VALUES ('', 'a'), ('a', 'b'), ('a ', 'c'), ('twenty letters long.', 'd')

INSERT INTO k_char VALUES ('', 'a'), ('ab', 'b'), ('abcdef', 'c'), ('a b', 'd')

INSERT INTO k_uuid VALUES ('00000000-0000-0000-0000-000000000000', 'a'), ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'b'), ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'c')

INSERT INTO k_date VALUES ('2026-11-22', 'a'), ('infinity', 'b'), ('0044-03-15 BC', 'c'), ('12345-01-01', 'd'), ('-infinity', 'e')

INSERT INTO k_timestamp VALUES ('2026-11-22 11:12:13', 'a'), ('2026-11-22 11:12:13.5', 'b'), ('infinity', 'c'), ('0044-03-15 00:00:00 BC', 'd')

INSERT INTO k_timestamp_3 VALUES ('2026-11-22 11:12:13.123456', 'a')

INSERT INTO k_timestamptz VALUES ('2026-11-22 11:12:13+02', 'a'), ('2026-11-22 11:12:13.5+00', 'b'), ('-infinity', 'c')

INSERT INTO k_time VALUES ('11:12:13', 'a'), ('24:00:00', 'b')

INSERT INTO k_interval VALUES ('1 day', 'a'), ('1 mon', 'b')

INSERT INTO k_boolean VALUES (true, 'a'), (false, 'b')

INSERT INTO k_bytea VALUES ('\x', 'a'), ('\x00ff', 'b')

INSERT INTO k_enum VALUES ('sad', 'a'), ('it''s ok', 'b')

INSERT INTO k_domain_numeric VALUES (1.0, 'a'), (1.50, 'b')

INSERT INTO k_domain_text VALUES ('x', 'a'), ('y ', 'b')

INSERT INTO k_jsonb VALUES ('{"a": 1.0}', 'a'), ('[]', 'b')

INSERT INTO k_inet VALUES ('10.0.0.1', 'a'), ('10.0.0.0/8', 'b')

INSERT INTO k_oid VALUES (1, 'a'), (4294967295, 'b')

INSERT INTO k_integers VALUES ('{1,2}', 'a'), ('{}', 'b')

INSERT INTO k_money VALUES (1.5, 'a'), (-2, 'b')

INSERT INTO k_name VALUES ('one', 'a'), ('two', 'b')

INSERT INTO k_bit VALUES (B'1010', 'a'), (B'0000', 'b')

INSERT INTO k_pg_lsn VALUES ('16/B374D848', 'a')

INSERT INTO k_two VALUES (1, 'a,b', 'a'), (1, 'a\b', 'b'), (-2147483648, '', 'c'), (2147483647, 'z', 'd')

INSERT INTO k_two_numeric_char VALUES (1.50, 'a', 'a'), (10, '', 'b')

INSERT INTO k_three VALUES ('2026-11-22', 5000000000, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'a'), ('infinity', -1, 'ffffffff-ffff-ffff-ffff-ffffffffffff', 'b')

INSERT INTO k_two_of_which_one_interval VALUES (1, '1 day', 'a'), (2, '1 day', 'b')

INSERT INTO i_full_with_key VALUES (1, 'a'), (2, 'b')

INSERT INTO i_full_without_key VALUES (1, 'a'), (1, 'a'), (2, NULL)

INSERT INTO i_index VALUES (1, 'one', 'a'), (2, 'two', 'b')

INSERT INTO i_nothing VALUES (1, 'a')

INSERT INTO i_default_without_key VALUES (1, 'a'), (2, 'b')

UPDATE k_integer SET k = k + 1 WHERE v = 'v3'

UPDATE k_two SET b = 'moved' WHERE a = 1 AND v = 'a'

DELETE FROM k_numeric WHERE v = 'b'

UPDATE i_full_with_key SET k = 3 WHERE k = 1

UPDATE i_full_without_key SET v = 'new' WHERE a = 2

DELETE FROM i_full_without_key WHERE a = 1

UPDATE i_index SET b = 'three' WHERE a = 2

INSERT INTO k_bytea SELECT decode(repeat('ab', 3000), 'hex'), 'long'

TRUNCATE k_real

SELECT pg_logical_emit_message(true, 'parallel_apply.ddl', 'ALTER TABLE k_text ADD note text')

ALTER TABLE k_text ADD note text

INSERT INTO k_text VALUES ('later', 'h', 'noted')
