"""How long a card would take, and what it would draw: a model, each constant with its source."""
