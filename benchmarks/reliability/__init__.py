"""What must hold when things go wrong; each script prints its figures and exits with 1 when a bar is missed."""
