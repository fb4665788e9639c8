"""Results that are kept: tables in SQLite, folders that are made once, work that processes divide."""
