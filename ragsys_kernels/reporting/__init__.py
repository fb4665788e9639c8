"""Pages of text, tables and figures, intervals of what they show, and what it was measured on."""
