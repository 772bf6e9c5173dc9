"""For the project's own tests only: `pytester`, and the gating of what this machine cannot run."""

pytest_plugins = ["pytester"]
