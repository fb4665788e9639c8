"""What all of the package stands on: arrays, checks and the words of errors, files, environment, optional packages."""
