"""The ledger: who owns a pipeline, how it is routed, where its runs end, and what is planned."""
