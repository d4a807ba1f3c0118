"""Decodes what comes over the wire: `pgoutput` messages and rows of COPY, as tuples and cells."""
