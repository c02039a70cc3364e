"""One plan for the jobs of a cluster, carried out beside the scheduler that runs them."""
