"""Trained agents that come with the library: for each a file, a card in JSON and a picture (`scripts/pretrain.py`)."""
