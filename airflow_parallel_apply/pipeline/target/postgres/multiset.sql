-- name: staged
SELECT count(*) FROM ({changes}) AS changes;

-- name: delete
-- Of each image as many rows as are too many, whichever come first: equal rows cannot be told apart.
WITH surplus AS MATERIALIZED (
    SELECT "pa:image" AS image, -sum(CASE WHEN "pa:inserted" THEN 1 ELSE -1 END) AS number
    FROM ({changes}) AS changes
    GROUP BY "pa:image"
    HAVING sum(CASE WHEN "pa:inserted" THEN 1 ELSE -1 END) < 0
), found AS MATERIALIZED (
    SELECT t.tableoid AS part, t.ctid AS place, s.image, s.number AS wanted,
           row_number() OVER (PARTITION BY s.image ORDER BY t.tableoid, t.ctid) AS number
    FROM {rows} AS t
    JOIN surplus s ON s.image = {target_image}
), gone AS (
    DELETE FROM {rows} AS t
    USING found AS f
    WHERE t.ctid = f.place AND t.tableoid = f.part AND f.number <= f.wanted
    RETURNING f.image
), missing AS (
    SELECT s.image, s.number - count(f.image) AS number
    FROM surplus s
    LEFT JOIN found f ON f.image = s.image AND f.number <= f.wanted
    GROUP BY s.image, s.number
    HAVING count(f.image) < s.number
)
SELECT coalesce(sum(number), 0), (array_agg(left(image, {shown_letters}) ORDER BY image))[:{shown_rows}],
       (SELECT coalesce(sum(number), 0) FROM surplus), (SELECT count(*) FROM gone)
FROM missing;

-- name: insert_watched
-- As insert, and how many images are not in the table as often as they were to be inserted.
WITH counted AS (
    SELECT *,
           sum(CASE WHEN "pa:inserted" THEN 1 ELSE -1 END) OVER (PARTITION BY "pa:image") AS "pa:net",
           row_number() OVER (PARTITION BY "pa:image", "pa:inserted") AS "pa:number"
    FROM ({changes}) AS changes
), put AS (
    INSERT INTO {target} AS t ({columns}) OVERRIDING SYSTEM VALUE
    SELECT {columns} FROM counted WHERE "pa:inserted" AND "pa:number" <= "pa:net"
    RETURNING {stored_image} AS image
)
SELECT (SELECT count(*) FROM put), count(*)
FROM (SELECT "pa:image" AS image, max("pa:net") AS number FROM counted WHERE "pa:net" > 0 GROUP BY 1) wanted
FULL JOIN (SELECT image, count(*) AS number FROM put GROUP BY 1) found USING (image)
WHERE wanted.number IS DISTINCT FROM found.number;

-- name: insert
INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {columns}
FROM (
    SELECT *,
           sum(CASE WHEN "pa:inserted" THEN 1 ELSE -1 END) OVER (PARTITION BY "pa:image") AS "pa:net",
           row_number() OVER (PARTITION BY "pa:image", "pa:inserted") AS "pa:number"
    FROM ({changes}) AS changes
) AS counted
WHERE "pa:inserted" AND "pa:number" <= "pa:net";
