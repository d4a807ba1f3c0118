SELECT {columns} FROM {schema}.claim(%(queues)s::text[], %(claimant)s::text, %(lease)s::interval, %(limit)s::integer) AS task
