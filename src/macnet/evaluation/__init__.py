"""What a trained network answers, and how often it is right."""
