"""Support that several tiers of tests share."""
