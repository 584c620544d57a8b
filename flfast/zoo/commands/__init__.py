"""Commands about options of the zoo."""
