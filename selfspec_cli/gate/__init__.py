"""From a run's files to a verdict before rollout: rules, checks, comparison. No torch."""
