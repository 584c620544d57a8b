"""What several streets of the zoo use."""
