"""Models behind the endpoints of OpenAI's API, which other servers have too."""
