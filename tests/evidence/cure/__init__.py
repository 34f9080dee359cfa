"""Whether what alerts advise cures: the remedies of faults are applied, and the training is run again."""
