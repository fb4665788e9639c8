"""HTTP: messages, the access log, which hosts a server answers as, the document of its routes."""
