"""The public calls, a file for each family of rules, and the course that all of them take."""
