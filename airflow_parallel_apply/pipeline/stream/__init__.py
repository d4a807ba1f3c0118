"""Rows of a log as a stream from a router: which ones (`ticket`), from where (`address`), and how (`client`)."""
