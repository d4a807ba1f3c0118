"""Topics as a place of exports."""
