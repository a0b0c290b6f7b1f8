"""A number that decides on what the experiment computes."""

RATE = 0.5
