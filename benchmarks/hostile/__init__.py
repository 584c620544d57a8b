"""Odd options, damaged data, kills, and configs that name commands: a campaign."""
