-- name: staged
SELECT count(*) FROM ({changes}) AS changes;

-- name: delete
-- Of each image as many rows as are too many, whichever come first: equal rows cannot be told apart.
WITH surplus AS MATERIALIZED (
    SELECT {image} AS image, -sum(CASE WHEN {inserted} THEN 1 ELSE -1 END) AS number
    FROM ({changes}) AS changes
    GROUP BY {image}
    HAVING sum(CASE WHEN {inserted} THEN 1 ELSE -1 END) < 0
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

-- name: expect
-- How often each image is to be there in the end.
CREATE UNLOGGED TABLE {expected} WITH (autovacuum_enabled = off) AS
SELECT image, wanted.number + coalesce(found.number, 0) AS number
FROM (
    SELECT {image} AS image, sum(CASE WHEN {inserted} THEN 1 ELSE -1 END) AS number
    FROM ({changes}) AS changes
    GROUP BY 1
) wanted
LEFT JOIN (SELECT {target_image} AS image, count(*) AS number FROM {rows} AS t GROUP BY 1) found USING (image);

-- name: unlike
SELECT count(*)
FROM {expected} wanted
LEFT JOIN (SELECT {target_image} AS image, count(*) AS number FROM {rows} AS t GROUP BY 1) found USING (image)
WHERE wanted.number <> coalesce(found.number, 0);

-- name: forget
DROP TABLE {expected};

-- name: insert
INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {columns}
FROM (
    SELECT *,
           sum(CASE WHEN {inserted} THEN 1 ELSE -1 END) OVER (PARTITION BY {image}) AS {net},
           row_number() OVER (PARTITION BY {image}, {inserted}) AS {number}
    FROM ({changes}) AS changes
) AS counted
WHERE {inserted} AND {number} <= {net};
