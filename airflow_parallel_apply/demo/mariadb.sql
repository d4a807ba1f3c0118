-- pgbench's tables, as `parallel-apply check` proposes them.
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler longtext);
CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler longtext);
CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler longtext);
CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime datetime(6), filler longtext);
