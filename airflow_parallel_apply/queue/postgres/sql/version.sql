SELECT COALESCE(max(version), 0) FROM {schema}.queue_version
