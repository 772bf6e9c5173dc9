"""What the `clusterqual` command does, a module a subcommand or kind of evidence."""
