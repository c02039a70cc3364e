"""The decision kernel on recorded grids: many jobs side by side, without torch and without a session."""
