"""The target `files`: a feed of every change in a directory, whose files appear with the next manifest."""
