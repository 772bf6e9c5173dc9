"""What a run leaves behind: its folder, the lines in it, and who may write there."""
