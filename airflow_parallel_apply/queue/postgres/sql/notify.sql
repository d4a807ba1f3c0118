SELECT pg_notify(%(channel)s::text, queue) FROM unnest(%(queues)s::text[]) AS queue
