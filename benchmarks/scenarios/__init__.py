"""Named settings in which every defense meets the strongest attacks, and the board of what came out."""
