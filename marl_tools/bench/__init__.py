"""Plans over many runs, and what their runs tell together."""
