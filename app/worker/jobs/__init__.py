"""What all kinds of jobs share: the pump as others see it, where it starts, topics as they are."""
