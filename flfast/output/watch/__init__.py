"""Follows a run or a sweep from another terminal, by the files in its folder."""
