"""Forward passes of a language model: loaded, in its own precision or in float32, what contexts share read once."""
