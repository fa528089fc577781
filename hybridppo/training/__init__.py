"""Train, resume and evaluate: puts environments, agent, placement, sampler and runner together, and runs them."""
