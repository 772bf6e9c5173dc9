"""One qualification run inside pytest: what was asked, its tests one by one, its end."""
