"""Room: text from outside (project files, captures) becomes words of the model."""
