"""What several algorithms of the zoo share."""
