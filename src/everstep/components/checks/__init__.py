"""Looks at a project before a GPU is spent on it: every component, and whether they fit together.

running.py     runs the checks, in order; one that fails leaves out those that need it
table.py       which checks there are, and what each needs
subject.py     what is looked at, and what the checks have found out so far
"""
