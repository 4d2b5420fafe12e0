"""How claims are put to the test: a file for each idea, each run in a process of its own."""
