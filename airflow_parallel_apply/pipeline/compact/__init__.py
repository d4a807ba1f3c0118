"""Tables folded from a feed of their changes."""
