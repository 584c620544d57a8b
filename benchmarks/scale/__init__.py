"""How long a round takes on many ranks: constants measured here, formulas, and their check."""
