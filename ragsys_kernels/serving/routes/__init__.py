"""The routes: what each kind of request reads and writes."""
