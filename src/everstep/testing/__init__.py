"""Contract suites and tiny tasks, for our tests and for those of extensions."""
