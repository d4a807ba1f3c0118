"""The hunt: random histories against one oracle. `make hunt` runs it; docs/development.md says how to read it."""
