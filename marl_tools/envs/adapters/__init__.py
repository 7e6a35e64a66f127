"""Third-party environments as parallel envs that keep the contract: what each got wrong is mended here, one file a family."""
