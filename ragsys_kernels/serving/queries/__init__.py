"""Queries as callers send them, read and checked into blocks that a kernel call takes."""
