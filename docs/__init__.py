"""Pages, and what makes the tables in them."""
