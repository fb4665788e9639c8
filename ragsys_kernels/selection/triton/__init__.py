"""The Triton backend; README.md says what runs when, and which file is which."""
