"""Quick looks before a long run: one batch of everything, the largest batch that fits, a range of learning rates."""
