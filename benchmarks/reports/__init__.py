"""Tables, pages and plots, from the ledgers."""
