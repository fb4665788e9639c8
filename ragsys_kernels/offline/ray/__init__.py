"""Jobs on a Ray cluster: shards made by its workers, and a selector for its data sets."""
