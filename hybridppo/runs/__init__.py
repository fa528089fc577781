"""A run as the user asks for it: its options, its settings in `config.json`, and the job made from them."""
