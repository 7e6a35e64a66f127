"""What runs tell together: figures of merit over sessions and trials."""
