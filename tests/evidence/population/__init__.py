"""A population of small trainings: drawn from a grammar, healthy or with a fault, as many as wanted."""
