"""Administration of a pipeline from outside: its status, waiting for it, its removal, the purge of its log."""
