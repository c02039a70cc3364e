"""Many jobs on one cluster: one plan under caps of nodes, watts and grams, with a bound on what any can reach."""
