"""What an environment does wrong, found before training."""
