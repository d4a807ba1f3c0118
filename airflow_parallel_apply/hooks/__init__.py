"""What a task is told, checked by type before anything starts: connections and pipeline parameters."""
