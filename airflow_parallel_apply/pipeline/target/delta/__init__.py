"""Delta Lake as a target, through delta-rs: no JVM package is needed."""
