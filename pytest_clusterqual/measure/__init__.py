"""From a case of the project file to a measurement that can be judged. No pytest."""
