"""Sets a pipeline up at its source: the first run, copies of tables at one moment of the stream, an adopted server."""
