"""Pure decisions, without torch: what a policy sees, what it wants, and what it is allowed."""
