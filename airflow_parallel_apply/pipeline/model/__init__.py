"""The words: what flows through the rooms, and what they tell one another."""
