"""A task's settings, checked by type before anything starts: connections and pipeline parameters."""
