"""The contract on the CPU, exact and fast."""
