"""What a run shows and leaves: tables, pictures, pages, and the readers of its files."""
