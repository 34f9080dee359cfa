"""From findings to problems: which findings one cause explains, how probable it is that something is wrong, and what to do."""
