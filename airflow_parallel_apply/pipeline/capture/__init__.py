"""Capture: the one place that fills a log from a source, whichever it is (law 7).

::

    source ── read ──▶ log.append ──▶ log.commit(captured offset) ──▶ … ──▶ source.release(what the log has)
                ▲                                            │
                └──────────────── the next step ─────────────┘

A log's writer is opened, committed and closed here, and by a purge. A source reads, and releases what it is told to.
"""
