"""Before there is hardware: what models and the job need of nodes that could be bought."""
