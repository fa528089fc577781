"""Train, resume and evaluate: from what is asked for to a runner that runs."""
