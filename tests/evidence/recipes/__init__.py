"""Small trainings from public recipes, healthy and with one mistake, written without knowledge of the checks."""
