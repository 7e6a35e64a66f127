"""Environments of other packages as parallel envs with a cost; each module is imported on demand and needs its package."""
