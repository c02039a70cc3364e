"""Many jobs on one cluster: jobs like those of public traces, a world of pools, caps and failures, policies."""
