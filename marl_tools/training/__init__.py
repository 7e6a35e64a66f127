"""IPPO: rollouts, updates, checkpoints, evaluation."""
