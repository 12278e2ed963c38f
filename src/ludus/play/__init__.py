"""A person at a table of a run's game: sessions, what they are shown, and games that are looked at again."""
