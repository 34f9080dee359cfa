"""One file or folder for each capability: what it records, its report, and its rules with their texts."""
