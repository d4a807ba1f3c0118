SELECT clock_timestamp() >= %(time)s
