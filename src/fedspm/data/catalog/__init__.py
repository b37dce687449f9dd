"""Published data sets by name: how they are found, fetched, checked and decoded."""
