"""Room: records become what people and CI read. Nothing here measures or judges."""
